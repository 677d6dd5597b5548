import assert from "node:assert/strict";
import { test } from "node:test";
import { described, marks, nearest, type Changed } from "../src/lib/changes.ts";
import { diff, lines } from "../src/lib/diff.ts";
import { ago, average, cores, duration, folded, instant, micros, percent, rate, withAges } from "../src/lib/format.ts";
import { MAX_NODES, NO_CALLS, NO_MESH, callerOf, foldRegions, hasPage, labelOf, level, matrix, picture, regionOf, rows, serviceOf, serving, sorted, withCalled, type Calls, type Mesh, type Numbers } from "../src/lib/graph.ts";
import { link, read } from "../src/lib/route.ts";
import { dueKey, isOff, isUnknown, listed, parts, times, type Endpoint, type Service, type ServiceCalls } from "../src/lib/service.ts";
import { attempted, corrected, loads, measuredAges, partlyCarried, places, took, type Attempt, type Correction, type Plan, type Probed, type RegionCalls, type Topology } from "../src/lib/regions.ts";
import { daysUntil, issued, lastMinute, refusedCall, refusedCalls, words, type Denied, type Entry } from "../src/lib/security.ts";
import { clock, hasFailed, newest, result, wentTo, type LastRequest } from "../src/lib/requests.ts";
import { authorization, pause, updated } from "../src/lib/stream.ts";
import { bar, byService, ended, hostOf, lasts, ordered, outcome, type Span, type Trace } from "../src/lib/traces.ts";

const numbers = (rate: number, failed = 0, age = 1_000): Numbers => [rate, 0, failed, 900, 4_000, 0, age];

function calls(pairs: [string, string, Numbers][]): Calls {
  const rows = new Map<string, Numbers>();
  for (const [from, to, of] of pairs) rows.set(`${from}\n${to}`, of).set(to, of);
  return { ...NO_CALLS, rows };
}

const mesh = (names: string[]): Mesh => ({
  ...NO_MESH,
  services: new Map(names.map((name) => [name, { kind: "replicated", protocol: "http", endpoints: { serving: 1 } }])),
});

test("what is not known is a dash and never zero", () => {
  for (const write of [rate, percent, micros, duration]) {
    for (const value of [-1, null, undefined, Number.NaN]) assert.equal(write(value), "–");
  }
  assert.equal(rate(0), "0");
});

test("numbers have three digits and a unit", () => {
  assert.equal(rate(-0), "0");
  assert.deepEqual([rate(1234.5), rate(12.34), rate(0.123)], ["1,235", "12.3", "0.12"]);
  assert.deepEqual([micros(900), micros(1_500), micros(2_000_000)], ["900 µs", "1.50 ms", "2.00 s"]);
  assert.deepEqual([average(7), average(2.5), average(1234)], ["7", "2.50", "1,234"]);
  assert.deepEqual([percent(0.05), percent(0.00001)], ["5.00 %", "< 0.01 %"]);
  assert.deepEqual([duration(5_000), duration(600_000), duration(36_000_000)], ["5 s", "10 min", "10 h"]);
});

test("ages, cores and times are written for people", () => {
  assert.deepEqual([ago(5_000), ago(null)], ["5 s ago", "never"]);
  assert.deepEqual([0, 0.0042, 0.25, 12.34, 1234].map(cores), ["0.00", "0.004", "0.25", "12.3", "1,234"]);
  assert.equal(instant("2026-05-04T12:30:00.123Z"), "2026-05-04 12:30:00Z");
});

test("a time in a text has its age beside it", () => {
  const now = Date.parse("2026-05-04T12:30:00Z");
  assert.equal(withAges("lost since 2026-05-04T12:00:00.123Z: no renewal", now), "lost since 2026-05-04 12:00:00Z (29 min ago): no renewal");
  assert.equal(withAges("until 2026-05-04T12:31:00Z", now), "until 2026-05-04 12:31:00Z (in 60 s)");
  assert.equal(withAges("no time", now), "no time");
});

test("changes become marks of a chart: those inside it, and close ones together", () => {
  const change = (atMs: number, by: string | null = null): Changed => ({ atMs, kind: "drain", text: `at ${atMs}`, by, message: null });
  const all = [change(160_000), change(102_000, "alice"), change(100_000), change(99_000)];
  const drawn = marks(all, [100, 200], 5);
  assert.deepEqual(drawn.map((mark) => [mark.at, mark.changes.length]), [[100, 2], [160, 1]]);
  assert.equal(nearest(drawn, 157, 4), drawn[1]);
  assert.equal(nearest(drawn, 150, 4), undefined);
  assert.equal(nearest([], 150, 4), undefined);
  assert.deepEqual(described(drawn[0]!, 222_000), ["1970-01-01 00:01:40Z (2 min ago): at 100000", "1970-01-01 00:01:42Z (2 min ago): at 102000, by alice"]);
  const many = { at: 1, changes: Array.from({ length: 9 }, () => change(1)) };
  assert.deepEqual(described(many, 1).slice(-1), ["and 3 more"]);
});

test("long lists are folded with the number of what they hide", () => {
  assert.deepEqual(folded(["a", "b", "c", "d"], 3), { shown: ["a", "b", "c", "d"], rest: [], more: 0, count: 0 });
  assert.deepEqual(folded(["a", "b", "c", "d", "e"], 3, 2), { shown: ["a", "b", "c"], rest: ["d", "e"], more: 2, count: 4 });
});

test("rows of a service in several regions are one row with its sum, and unfold", () => {
  const row = (name: string, rate: number) => ({ name, numbers: numbers(rate) });
  const groups = foldRegions([row("shop/cart@eu", 3), row("shop/db@eu", 9), row("shop/cart@us", 2)], (one) => one.name, (one) => regionOf(one.name));
  assert.deepEqual(groups.map(({ name, numbers, parts }) => [name, numbers?.[0], parts.map((part) => part.region)]), [
    ["shop/cart", 5, ["eu", "us"]],
    ["shop/db", 9, ["eu"]],
  ]);
  assert.deepEqual(sorted(groups, "calls/s").map((group) => group.name), ["shop/db", "shop/cart"]);
  assert.equal(regionOf("shop/cart"), "–");
});

test("a service that is called and has no endpoint left is as bad as one whose endpoints are lost", () => {
  assert.deepEqual(serving({}, numbers(1)), { text: "0", tone: "bad" });
  assert.deepEqual(serving({ lost: 2 }, numbers(1)), { text: "0/2", tone: "bad" });
  assert.deepEqual(serving({ serving: 1, lost: 1 }, undefined), { text: "1/2", tone: "warn" });
  assert.deepEqual(serving({ serving: 2 }, numbers(1)), { text: "2/2", tone: "" });
  for (const [endpoints, row] of [[{}, undefined], [{}, numbers(0)], [undefined, numbers(1)]] as const) assert.equal(serving(endpoints, row).text, "");
});

test("a service with calls and no record left is listed without endpoints", () => {
  const shown = calls([["a/web", "a/cart", numbers(1)], ["b/web", "b/db", numbers(1)], ["a/web", "a/idle", numbers(0)], ["-", "(other)", numbers(1)]]);
  assert.deepEqual([...withCalled(mesh(["a/web"]), shown, "a").services.keys()], ["a/web", "a/cart"]);
  const node = picture(shown, withCalled(mesh([]), shown, ""), "", new Set()).nodes.find((node) => node.id === "a/cart");
  assert.equal(serving(node?.endpoints, node?.numbers).text, "0");
});

test("callers without a name are named by whether their region is known", () => {
  assert.deepEqual([callerOf("-", "eu"), callerOf("-", "-"), callerOf("a/web", "eu")].map(labelOf), ["no service identity", "outside the mesh", "a/web"]);
  assert.deepEqual([labelOf("(no identity)@eu"), labelOf("a/web@eu")], ["no service identity@eu", "a/web@eu"]);
  assert.deepEqual(["-", "(no identity)@eu", "(other)", "a/web", "a"].map(hasPage), [false, false, false, true, true]);
});

test("a service that calls itself has an edge", () => {
  const drawn = picture(calls([["a/web", "a/web", numbers(1)]]), mesh([]), "a/web", new Set());
  assert.deepEqual([drawn.nodes.length, drawn.edges.map(({ from, to }) => [from, to])], [1, [["a/web", "a/web"]]]);
});

test("steps without calls have no failed part", () => {
  assert.deepEqual(parts([null, 0, 2, 4], [null, 0, 1, 0]), [null, null, 0.5, 0]);
});

test("endpoints that do not serve are listed first", () => {
  const one = (instance: string, state: string, region = "eu") => ({ instance, region, state }) as Endpoint;
  const all = [one("b-10", "serving"), one("b-2", "serving"), one("a", "serving", "us"), one("c", "draining"), one("d", "lost", "us")];
  assert.deepEqual(listed(all).map(({ instance }) => instance), ["d", "c", "b-2", "b-10", "a"]);
});

test("shares are judged while the same endpoints serve", () => {
  const one = (more: Partial<Endpoint>) => ({ instance: "a", region: "eu", state: "serving", power: 1_000, due: 0.5, received: 0.1, settled: true, ...more }) as Endpoint;
  assert.deepEqual([{}, { settled: false }, { received: 0.49 }, { received: null }].map((more) => isOff(one(more))), [true, false, false, false]);
  assert.notEqual(dueKey([one({})]), dueKey([one({ power: 2_000 })]));
  assert.equal(dueKey([one({}), one({ instance: "b" })]), dueKey([one({ instance: "b" }), one({ received: 0.3 })]));
});

test("a name without records and calls is that of no service", () => {
  const service = { declared: false, endpoints: [], policyRevision: null } as unknown as Service;
  const calls = { callers: [], called: [] } as unknown as ServiceCalls;
  assert.ok(isUnknown(service, calls));
  assert.ok(!isUnknown({ ...service, declared: true }, calls));
  assert.ok(!isUnknown(service, { ...calls, called: [["a/db", "-", ["eu", "eu"], numbers(1)]] }));
});

test("services are sorted by a column, and what is not known is last", () => {
  const all = [{ name: "a/c", numbers: numbers(1, 0.5) }, { name: "a/a" }, { name: "a/b", numbers: numbers(2, 0.1) }];
  const names = (by: string) => sorted(all, by).map(({ name }) => name);
  assert.deepEqual(names("failed"), ["a/c", "a/b", "a/a"]);
  assert.deepEqual(names("calls/s"), ["a/b", "a/c", "a/a"]);
  assert.deepEqual(names("service"), ["a/a", "a/b", "a/c"]);
  assert.deepEqual(names("nothing"), ["a/c", "a/a", "a/b"]);
});

test("an update changes the rows that it has alone", () => {
  const all = updated(new Map(), { whole: true, head: null, rows: { a: 1, b: 2 }, gone: [] });
  assert.deepEqual([...updated(all, { whole: false, head: null, rows: { b: 3, c: 4 }, gone: ["a"] })], [["b", 3], ["c", 4]]);
  assert.deepEqual([...updated(all, { whole: true, head: null, rows: {}, gone: [] })], []);
});

test("a service is near in each of its regions", () => {
  const shown = calls([["a/web@eu", "a/cart@us", numbers(1)], ["a/cart@eu", "a/db@eu", numbers(1)], ["a/x@eu", "a/y@eu", numbers(1)]]);
  const drawn = picture(shown, NO_MESH, "a/cart", new Set());
  assert.deepEqual(drawn.nodes.map((node) => node.id).sort(), ["a/cart@eu", "a/cart@us", "a/db@eu", "a/web@eu"]);
  assert.equal(serviceOf("a/cart@us"), "a/cart");
});

test("a matrix of probes has each place once", () => {
  const probed: Probed = { verdict: "passing", fault: null, ageMs: 0, protocols: [{ protocol: "tcp", passed: 0, failed: 1, tookUs: null }, { protocol: "grpc", passed: 1, failed: 0, tookUs: 900 }] };
  assert.deepEqual(places(new Map([["us\neu/a", probed], ["eu/a\nus", probed]])), ["eu/a", "us"]);
  assert.equal(took(probed), 900);
});

test("round trips have the ages of their measurements", () => {
  const topology = (roundTrips: Topology["roundTrips"]): Topology => ({ regions: [], roundTrips });
  assert.deepEqual(measuredAges(topology([["eu", "us", 80_000, 9_000], ["us", "eu", 80_000, 4_000], ["eu", "asia", 1, null]])), [4_000, 9_000]);
  assert.equal(measuredAges(topology([["eu", "us", 80_000, null]])), null);
  const region = (name: string, overflowing: [string, number][]) => ({ name, declared: true, continent: null, neighbours: [], endpoints: 4, serving: 2, overflowing, moreOverflowing: 0 });
  const lost: Topology = { regions: [region("eu", [["shop/cart", 0.7]]), region("us", [])], roundTrips: [] };
  assert.deepEqual([partlyCarried(lost, "shop/cart"), partlyCarried(lost, "shop/db"), partlyCarried(null, "shop/cart")], [[["eu", 0.7]], [], []]);
});

test("entries of the log are told in a line, and certificates by age", () => {
  const entry = (number: number, more: Partial<Entry>): Entry => ({ number, atMs: number, who: "a", message: null, changes: [], allChanges: 0, event: null, details: null, ...more });
  const certificate = (number: number, identity: string) => entry(number, { event: "certificate", details: { identity } });
  assert.equal(words(entry(1, { changes: [{ key: "/k", what: "created" }], allChanges: 3 })), "created /k, and 2 more");
  assert.equal(words(certificate(2, "shop/cart")), "certificate: shop/cart");
  const denied = (number: number, method: string) => entry(number, { event: "denied", details: { method, reason: "403" } });
  assert.deepEqual(refusedCalls([denied(3, "/v1/drain"), certificate(2, "shop/cart"), denied(1, "")]).map(({ number, what, reason }) => [number, what, reason]), [
    [3, "/v1/drain", "403"],
    [1, "connection", "403"],
  ]);
  assert.equal(words(denied(1, "")), "refused connection: 403");
  const found = issued([certificate(9, "shop/web"), certificate(7, "shop/cart"), certificate(5, "shop/web"), entry(3, {})]);
  assert.deepEqual(found, [{ identity: "shop/cart", atMs: 7, count: 1 }, { identity: "shop/web", atMs: 9, count: 2 }]);
  assert.equal(daysUntil("2026-05-04T12:00:00Z", Date.parse("2026-05-01T13:00:00Z")), 2);
});

test("the last refused call has an age and the time of its minute", () => {
  const now = Date.parse("2026-05-04T12:30:20Z");
  assert.deepEqual(lastMinute(0, now), { words: "this minute", at: "2026-05-04 12:30Z" });
  assert.deepEqual(lastMinute(3, now), { words: "3 min ago", at: "2026-05-04 12:27Z" });
});

test("a service is shown with its neighbours alone", () => {
  const shown = calls([["a/web", "a/cart", numbers(1)], ["a/cart", "a/db", numbers(1)], ["a/x", "a/y", numbers(1)]]);
  const drawn = picture(shown, mesh([]), "a/cart", new Set());
  assert.deepEqual(drawn.nodes.map((node) => node.id).sort(), ["a/cart", "a/db", "a/web"]);
  assert.equal(drawn.edges.length, 2);
});

test("tenants of a large mesh are folded, and one that is opened is not", () => {
  const names = Array.from({ length: MAX_NODES + 1 }, (_, at) => `t${at % 3}/s${at}`);
  const pairs = names.slice(1).map((name, at) => [names[at] ?? "", name, numbers(1, at % 2)] as [string, string, Numbers]);
  const folded = picture(calls(pairs), mesh(names), "", new Set());
  assert.deepEqual([folded.kind, folded.nodes.length], ["graph", 3]);
  const between = folded.edges.find((edge) => edge.from === "t0" && edge.to === "t1");
  assert.equal(between?.numbers[0], 100);
  assert.equal(between?.numbers[2], 0.5, "failed parts are weighted by their calls");
  const open = picture(calls(pairs), mesh(names), "", new Set(["t0"]));
  assert.equal(open.nodes.length, 103);
});

test("what is too large for a graph is a matrix of the busiest", () => {
  const names = Array.from({ length: MAX_NODES + 1 }, (_, at) => `t/s${at}`);
  const pairs = names.slice(1).map((name, at) => ["t/s0", name, numbers(at)] as [string, string, Numbers]);
  const drawn = picture(calls(pairs), mesh(names), "", new Set());
  assert.equal(drawn.kind, "matrix");
  const shown = matrix(drawn.edges, "", 40);
  assert.deepEqual([shown.callers, shown.services.length, shown.hiddenServices], [["t/s0"], 40, MAX_NODES - 40]);
  assert.equal(shown.services[0], `t/s${MAX_NODES}`);
  assert.equal(matrix(drawn.edges, "s299", 40).services.length, 1);
});

test("2,000 services and 10,000 pairs are filtered, and folded by tenant", () => {
  const names = Array.from({ length: 2_000 }, (_, at) => `t${at % 40}/service-${at}`);
  const pairs = Array.from({ length: 10_000 }, (_, at) => [names[at % 2_000], names[(at * 7 + 1 + Math.floor(at / 2_000) * 13) % 2_000], numbers(at)] as [string, string, Numbers]);
  const all = calls(pairs);
  assert.equal(rows(all, mesh(names), "service-199").length, 11);
  const drawn = picture(all, mesh(names), "", new Set());
  assert.deepEqual([drawn.nodes.length, drawn.kind], [40, "matrix"], "too many pairs of tenants for a graph");
  // CPU time: the machine may be busy with other tests.
  const begun = process.cpuUsage();
  for (let at = 0; at < 10; at += 1) rows(all, mesh(names), `service-1${at}`);
  const { user, system } = process.cpuUsage(begun);
  assert.ok((user + system) / 1_000 / 10 < 50, "a filter answers at once");
});

test("levels say what is bad, and what is old before it", () => {
  const levels = [undefined, numbers(0), numbers(1), numbers(1, 0.01), numbers(1, 0.5), numbers(1, 0.5, 60_000), numbers(-1)].map(level);
  assert.deepEqual(levels, ["none", "none", "good", "warn", "bad", "old", "old"]);
});

test("the state of the page is in its URL", () => {
  const url = link("why", { service: "shop/cart", path: "/a?b=c&d", region: "" });
  assert.equal(url, "#/why?service=shop/cart&path=/a%3Fb%3Dc%26d");
  const route = read(url);
  assert.deepEqual([route.page, route.query.get("service"), route.query.get("path")], ["why", "shop/cart", "/a?b=c&d"]);
  assert.equal(read("#/nothing").page, "graph");
});

test("documents are compared by lines", () => {
  const old = lines({ timeout: "2s", routes: [{ name: "a", split: [] }], none: null });
  assert.deepEqual(old, ["timeout: 2s", "routes:", "  - name: a", "    split: []"]);
  const now = lines({ timeout: "5s", retry: { attempts: 2 }, routes: [{ name: "a", split: [] }] });
  const changed = diff(old, now).filter((line) => line.sign !== " ").map((line) => line.sign + line.text);
  assert.deepEqual(changed, ["-timeout: 2s", "+timeout: 5s", "+retry:", "+  attempts: 2"]);
});

test("steps end with the present one", () => {
  assert.deepEqual(times(3, 10_000, 65_000), [40, 50, 60]);
});

test("a token is sent over https alone", () => {
  assert.deepEqual(authorization("https:", "secret"), { authorization: "Bearer secret" });
  assert.deepEqual(authorization("http:", "secret"), {});
  assert.deepEqual(authorization("https:", ""), {});
});

test("a stream that ends at once is opened again after a pause", () => {
  assert.equal(pause(true, 60_000), 0);
  assert.equal(pause(true, 5), 2_000);
  assert.equal(pause(false, 60_000), 2_000);
});

const trace = (given: Partial<Trace> = {}): Trace => ({ service: "shop/web", name: "GET shop/web", durationUs: 900, spans: 2, ageMs: 5_000, status: 200, failed: false, error: null, failedService: null, ...given });
const span = (given: Partial<Span> = {}): Span => ({ depth: 0, kind: "server", service: null, process: null, name: "s", startUs: 0, durationUs: 100, status: null, error: null, instance: null, address: null, region: null, revision: null, ...given });

test("traces are ordered by time or age, and counted by service", () => {
  const all = new Map([["a", trace({ ageMs: 90_000, durationUs: 500 })], ["b", trace({ service: "shop/ads", failed: true })], ["c", trace({ durationUs: 700 })]]);
  assert.deepEqual(ordered(all, "slowest").map(([id]) => id), ["b", "c", "a"]);
  assert.deepEqual(ordered(all, "newest").map(([id]) => id), ["b", "c", "a"]);
  assert.deepEqual(ordered(new Map([...all, ["d", trace({ ageMs: 0, durationUs: 1 })]]), "newest")[0]?.[0], "d");
  assert.deepEqual(byService(all.values()).map(({ service, traces, failed }) => [service, traces, failed]), [["shop/ads", 1, 1], ["shop/web", 2, 0]]);
});

test("a trace whose attempt was repeated is a warning, and one that failed is bad", () => {
  assert.deepEqual(outcome(trace()), { words: "200", tone: "" });
  assert.deepEqual(outcome(trace({ failed: true, error: "reset", failedService: "shop/db" })), { words: "200, shop/db: reset", tone: "warn" });
  assert.equal(outcome(trace({ failed: true, error: "shop/db: reset; start it", failedService: "shop/db" })).words, "200, shop/db: reset");
  assert.deepEqual(outcome(trace({ failed: true, status: 503, error: "503", failedService: "shop/web" })), { words: "503, failed", tone: "bad" });
  assert.deepEqual(outcome(trace({ failed: true, status: null, error: "unreachable", failedService: "shop/web" })), { words: "unreachable", tone: "bad" });
});

test("bars of a waterfall lie within it and stay visible", () => {
  const spans = [span({ durationUs: 1_000 }), span({ startUs: 1_200, durationUs: 0 })];
  assert.equal(lasts(spans), 1_200);
  const [, last] = spans.map((one) => bar(one, lasts(spans)));
  assert.ok(last && last.width > 0 && last.at + last.width <= 100);
  assert.deepEqual([ended(span({ status: 503, error: "503" })), ended(span({ error: "reset" })), ended(span({ status: 504, error: "deadline" })), ended(span())], ["503", "reset", "504 deadline", "ok"]);
  assert.equal(hostOf("https://jaeger.example/trace/1"), "jaeger.example");
});

test("a refused call is named by method and path", () => {
  const denied: Denied = { caller: null, rule: null, method: "GET", path: "/items/*", audit: false, count: 1, minutesAgo: 0 };
  assert.deepEqual([denied, { ...denied, method: null, path: "(other)" }, { ...denied, method: null, path: null }].map(refusedCall), ["GET /items/*", "(other)", "–"]);
});

test("load over time is that of the servers now, by the calls of each step", () => {
  const calls: RegionCalls = { stepMs: 10_000, regions: [{ region: "eu", received: [null, 50, 200], crossing: [] }, { region: "us", received: [1], crossing: [] }], moreRegions: 0, crossing: [] };
  const region = { region: "eu", endpoints: 2, load: 0.5, predicted: null, offered: 0, received: 100, unreported: 0, serversAgoMs: 0, callersAgoMs: 0, zoneRefusal: null };
  const plan = { regions: [region, { ...region, region: "us", load: null }] } as unknown as Plan;
  assert.deepEqual(loads(calls, plan), [{ region: "eu", values: [null, 0.25, 1] }]);
});

test("corrections and attempts of the optimizer are written with their units", () => {
  const latency: Correction = { kind: "latency", region: "eu", class: null, model: 31.8, measured: 333, error: 4.06, by: -301.2, beganAgoMs: 0, calls: 1 };
  assert.deepEqual(corrected(latency), { by: "−301 ms", model: "31.8 ms", measured: "333 ± 4.06 ms" });
  assert.deepEqual(corrected({ ...latency, kind: "work", model: 0.9, measured: 1.44, by: 1.6, error: null }), { by: "× 1.60", model: "0.90 cores", measured: "1.44 cores" });
  const attempt: Attempt = { callers: "eu", class: null, from: "eu", to: "us", share: 0.1, beforeMs: 42.1, afterMs: 39, errorMs: 0.4, beganAgoMs: 0, outcome: "kept" };
  assert.deepEqual(attempted(attempt), { effect: "−3.10 ± 0.40 ms", outcome: "kept: calls are faster" });
  assert.deepEqual(attempted({ ...attempt, afterMs: null, outcome: "later" }), { effect: "–", outcome: "later" });
});

test("requests of proxies have their outcome and the endpoint of the last attempt", () => {
  const attempt = { service: "shop/web", instance: "web-1", region: "eu", revision: 7, ms: 1, outcome: "reset" };
  const request = { time: 1.5, method: "GET", path: "/", status: 200, caller: "10.0.0.1", proxy: "p", ms: 1, steps: [], attempts: [attempt, { ...attempt, instance: "web-2" }] } satisfies LastRequest;
  assert.equal(wentTo(request), "web-2 in eu, attempt 2");
  assert.equal(wentTo({ ...request, attempts: [] }), "–");
  assert.deepEqual([request, { status: 503, fault: "deadline" }, { status: 200, grpcStatus: 14, ended: "given_up" }].map(result), ["200", "503, deadline", "200, gRPC 14, given up"]);
  assert.deepEqual([{ status: 404 }, { status: 200, grpcStatus: 0 }, { status: 502 }, { status: 200, grpcStatus: 2 }, { status: 200, ended: "broken" }].map(hasFailed), [false, false, true, true, true]);
  assert.deepEqual(newest(new Map([["001", "a"], ["003", "c"], ["002", "b"]])).map(([, one]) => one), ["c", "b", "a"]);
  assert.equal(clock(1.5), "00:00:01.500");
});
