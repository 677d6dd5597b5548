// Drives the web page in a browser, a step for each line of JSON at standard input; the result of each is a line of JSON.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { CHROMIUM, MODULES } = process.env;
const require = createRequire(`${MODULES}/`);
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core/axe.min.js");
const base = process.argv[2];

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage({ viewport: { width: 1440, height: 860 } });
page.setDefaultTimeout(30_000);
const console = [];
page.on("console", (message) => {
  if (["error", "warning"].includes(message.type())) console.push(message.text());
});
page.on("pageerror", (error) => console.push(String(error)));

const open = (state) => page.goto(`${base}#/${state}`);

/** The row of a caller of the service that is looked at. */
const callerRow = (name) => page.locator("tbody[data-of=Callers] tr", { hasText: name });

const steps = {
  async graph({ services, nodes, edges }) {
    const response = await page.goto(base);
    await page.locator("section.list h2", { hasText: "Services" }).waitFor();
    const graph = page.locator(`.graph[data-laid-out=yes][aria-label^="Graph of ${nodes} services and ${edges.length} pairs"]`);
    await graph.waitFor();
    await page.waitForFunction((count) => document.querySelectorAll("section.list tbody tr").length >= count, services);
    for (const [caller, service] of edges) {
      await open(`graph?service=${service}`);
      await callerRow(caller || "no service identity").waitFor();
    }
    return { policy: response.headers()["content-security-policy"].split(";")[0] };
  },

  /** Looks at services one by one: each has its caller. */
  async edges({ edges }) {
    for (const [caller, service] of edges) {
      await open(`graph?service=${service}`);
      await callerRow(caller).waitFor();
    }
    return {};
  },

  async why({ service, region, seed }) {
    await open(`why?service=${service}`);
    await page.locator(`select[name=region] option:text-is("${region}")`).waitFor({ state: "attached" });
    await page.locator("select[name=region]").selectOption(region);
    await page.locator("input[name=seed]").fill(seed);
    await page.getByRole("button", { name: "Explain" }).click();
    const goesTo = await page.locator("#decision strong").textContent();
    return { goesTo, steps: await page.locator("section[aria-label='The decision'] tbody td:last-child").allTextContents() };
  },

  async service({ service, versions }) {
    await open(`service?service=${service}`);
    await page.locator("section[aria-label=Endpoints] .tag", { hasText: "serving" }).first().waitFor();
    await page.waitForFunction((count) => document.querySelectorAll("section[aria-label=Policy] option").length >= count, versions);
    await page.locator(".charts canvas").nth(2).waitFor();
    await page.locator("section[aria-label=Policy] .added").first().waitFor();
    return {};
  },

  async failing({ service, caller }) {
    const began = Date.now();
    await open(`graph?service=${service}&window=10`);
    await callerRow(caller).locator("td.bad").waitFor({ timeout: 15_000 });
    return { ms: Date.now() - began };
  },

  /** Opens a page, and waits until panels by their name have these texts. */
  async shows({ state, panels }) {
    await open(state);
    for (const [panel, text] of panels) await page.locator(`section[aria-label="${panel}"]`, { hasText: text }).waitFor();
    return {};
  },

  /** Reaches a link by its name with the keyboard alone, and follows it. */
  async keyboard({ state, link, panel }) {
    await open(state);
    await page.getByRole("link", { name: link, exact: true }).waitFor();
    for (let at = 0; at < 60; at += 1) {
      await page.keyboard.press("Tab");
      const name = await page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent?.trim());
      if (name === link) break;
    }
    await page.keyboard.press("Enter");
    await page.locator(`section[aria-label="${panel}"]`).waitFor();
    return {};
  },

  async audit({ states }) {
    const violations = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      for (const state of states) {
        await open(state);
        await page.locator("section.panel tbody tr").first().waitFor();
        // Under the policy of the page no script is added to it; the protocol of the browser may evaluate one.
        await page.evaluate(await (await import("node:fs/promises")).readFile(axe, "utf8"));
        const found = await page.evaluate(() => globalThis.axe.run());
        for (const { id, impact, nodes } of found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact))) {
          violations.push(`${colorScheme} ${state}: ${impact} ${id}: ${nodes.map((node) => node.target).join(", ")}`);
        }
      }
    }
    await page.emulateMedia({ colorScheme: "light" });
    return { violations, console };
  },

  /** Times of a page of a large mesh: until it shows rows and a picture, and of the slowest filter. */
  async measure({ rows, filters }) {
    const began = Date.now();
    await page.goto(base);
    await page.waitForFunction((count) => document.querySelectorAll("section.list tbody tr").length >= count, rows);
    await page.locator(".graph[data-laid-out=yes], section[aria-label=Matrix] tbody tr").first().waitFor();
    const openMs = Date.now() - began;
    let filterMs = 0;
    for (const [text, count] of filters) {
      const took = await page.evaluate(
        async ([text, count]) => {
          const input = document.querySelector("input[type=search]");
          const begun = performance.now();
          input.value = text;
          input.dispatchEvent(new Event("input", { bubbles: true }));
          while (document.querySelectorAll("section.list tbody tr").length !== count) await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        },
        [text, count],
      );
      filterMs = Math.max(filterMs, took);
    }
    return { openMs, filterMs };
  },

  async screenshots({ folder, shots }) {
    await page.setViewportSize({ width: 1200, height: 720 });
    for (const [name, state, colorScheme] of shots) {
      await page.emulateMedia({ colorScheme });
      await open(state);
      await page.reload();
      await page.locator("section.panel tbody tr").first().waitFor();
      if (state.startsWith("graph")) await page.locator(".graph[data-laid-out=yes]").waitFor();
      await page.waitForTimeout(2500);
      await page.screenshot({ path: `${folder}/${name}.png` });
    }
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line);
  if (step.do === "end") break;
  let outcome;
  try {
    outcome = { result: await steps[step.do](step) };
  } catch (error) {
    outcome = { error: `${error}; ${await page.locator("body").innerText().catch(() => "")}; console: ${console.join("; ")}` };
  }
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
}
await browser.close();
process.exit();
