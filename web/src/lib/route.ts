/** The pages by name, in the order of their links. */
export const PAGES = { graph: "Graph", service: "Service", why: "Why", traces: "Traces", regions: "Regions", imbalance: "Imbalance", security: "Security", fleet: "Fleet" };
export type Page = keyof typeof PAGES;

/** The state of the page, which is all in its URL: `#/graph?service=shop/cart&region=eu`. */
export interface Route {
  page: Page;
  query: URLSearchParams;
}

/** Reads the part of a URL behind `#`; what is not known is the graph. */
export function read(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const page = Object.hasOwn(PAGES, path) ? (path as Page) : "graph";
  return { page, query: new URLSearchParams(query) };
}

/** Writes a link; empty values are left out. */
export function link(page: Page, values: Record<string, string | undefined>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value) query.set(name, value);
  // Names of services stay legible.
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%2C", ",");
  return text ? `#/${page}?${text}` : `#/${page}`;
}

/** The same page with other values. */
export function changed(route: Route, values: Record<string, string | undefined>): string {
  return link(route.page, { ...Object.fromEntries(route.query), ...values });
}
