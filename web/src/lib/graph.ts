/** Who calls whom, and what of it is visible. Pure: the same numbers and the same URL show the same. */

/** Calls and retries per second, failed part, p50 and p99 in µs, bytes per second between regions, age in ms; -1: not known. */
export type Numbers = [number, number, number, number, number, number, number];

/** The event `calls` of `/ui/api/live`. */
export interface Calls {
  regions: string[];
  windowMs: number;
  historyMs: number;
  notShown: number;
  leftOut: number;
  /** By service, or by caller and service on two lines. */
  rows: ReadonlyMap<string, Numbers>;
}

/** What is known of a service by its records. */
export interface Listed {
  kind: string | null;
  protocol: string | null;
  endpoints: Record<string, number>;
}

/** The event `mesh`. */
export interface Mesh {
  regions: string[];
  zones: string[];
  services: ReadonlyMap<string, Listed>;
}

export const NO_CALLS: Calls = { regions: [], windowMs: 0, historyMs: 0, notShown: 0, leftOut: 0, rows: new Map() };
export const NO_MESH: Mesh = { regions: [], zones: [], services: new Map() };

export interface Edge {
  from: string;
  to: string;
  numbers: Numbers;
}

export interface Node {
  id: string;
  label: string;
  /** Of a folded tenant, its services. */
  folded: number;
  /** The numbers of calls to it, if it is a service. */
  numbers?: Numbers;
  endpoints?: Record<string, number>;
}

export interface Picture {
  kind: "graph" | "matrix";
  nodes: Node[];
  edges: Edge[];
}

/** The most nodes that are drawn as a graph. */
export const MAX_NODES = 300;
/** Pairs that are always drawn, and the most for each node beyond: more lines cross each other, and their layout takes seconds. */
const FEW_EDGES = 100;
const EDGES_PER_NODE = 4;
/** Callers without a name and a region: they are outside the mesh. */
export const OUTSIDE = "-";
/** Callers without a service identity whose region is known: programs of the mesh report their calls. */
export const NO_IDENTITY = "(no identity)";
/** Age from which numbers are marked as old, in ms. */
export const OLD_MS = 30_000;

/** The service of a node, which may be that in one region. */
export function serviceOf(name: string): string {
  return name.split("@", 1)[0] ?? name;
}

/** Whether a name is that of a service or tenant, which has a page. */
export function hasPage(name: string): boolean {
  return !/^[-(]/.test(name);
}

/** A name as it is shown, with its region if it has one. */
export function labelOf(name: string): string {
  const words: Record<string, string> = { [OUTSIDE]: "outside the mesh", [NO_IDENTITY]: "no service identity" };
  const service = serviceOf(name);
  return (words[service] ?? service) + name.slice(service.length);
}

/** The name of a caller whose region is known or not. */
export function callerOf(name: string, region: string): string {
  return name === OUTSIDE && region !== OUTSIDE ? NO_IDENTITY : name;
}

export function tenantOf(name: string): string {
  const at = name.indexOf("/");
  return at < 0 ? name : name.slice(0, at);
}

/** Adds two rows; of quantiles and ages the worse one is kept, since histograms are not here. */
export function add(one: Numbers, other: Numbers): Numbers {
  if (one[0] < 0) return other;
  if (other[0] < 0) return one;
  const rate = one[0] + other[0];
  const failed = Math.max(one[2], 0) * one[0] + Math.max(other[2], 0) * other[0];
  const part = rate > 0 ? failed / rate : -1;
  const [p50, p99] = [Math.max(one[3], other[3]), Math.max(one[4], other[4])];
  return [rate, one[1] + other[1], part, p50, p99, one[5] + other[5], Math.min(one[6], other[6])];
}

export function edges(calls: Calls): Edge[] {
  const found: Edge[] = [];
  for (const [name, numbers] of calls.rows) {
    const at = name.indexOf("\n");
    if (at >= 0) found.push({ from: name.slice(0, at), to: name.slice(at + 1), numbers });
  }
  return found;
}

/** What a page shows: a service and its neighbours, or everything with the tenants folded that are not in `open`. */
export function picture(calls: Calls, mesh: Mesh, focus: string, open: ReadonlySet<string>): Picture {
  const all = edges(calls);
  if (focus) {
    const near = all.filter((edge) => isOf(edge, focus));
    const own = near.length ? [] : [focus];
    const names = new Set([...own, ...near.flatMap((edge) => [edge.from, edge.to])]);
    return drawn(calls, mesh, near, (name) => name, names);
  }
  const names = new Set([...mesh.services.keys(), ...all.flatMap((edge) => [edge.from, edge.to])]);
  const tenants = new Set([...names].map(tenantOf));
  const isFolded = names.size > MAX_NODES && tenants.size > 1;
  const shown = (name: string) => (isFolded && name.includes("/") && !open.has(tenantOf(name)) ? tenantOf(name) : name);
  return drawn(calls, mesh, all, shown, names);
}

/** Whether an edge begins or ends at a service, in any of its regions. */
export function isOf(edge: Edge, service: string): boolean {
  return serviceOf(edge.from) === service || serviceOf(edge.to) === service;
}

function drawn(calls: Calls, mesh: Mesh, all: Edge[], shown: (name: string) => string, names: Set<string>): Picture {
  const nodes = new Map<string, Node>();
  for (const name of names) {
    const id = shown(name);
    const node = nodes.get(id) ?? { id, label: id, folded: 0 };
    if (id === name) {
      node.label = labelOf(name);
      node.numbers = calls.rows.get(name);
      node.endpoints = mesh.services.get(name)?.endpoints;
    } else node.folded += 1;
    nodes.set(id, node);
  }
  const sums = new Map<string, Edge>();
  for (const edge of all) {
    const [from, to] = [shown(edge.from), shown(edge.to)];
    const key = `${from}\n${to}`;
    const sum = sums.get(key);
    if (sum) sum.numbers = add(sum.numbers, edge.numbers);
    else sums.set(key, { from, to, numbers: edge.numbers });
  }
  const kind = nodes.size > MAX_NODES || sums.size > Math.max(FEW_EDGES, nodes.size * EDGES_PER_NODE) ? "matrix" : "graph";
  return { kind, nodes: [...nodes.values()], edges: [...sums.values()] };
}

/** Serving endpoints of all, such as `1/2`. A service that is called and has no endpoint left is as bad as one whose endpoints are all lost. */
export interface Serving {
  text: string;
  tone: "" | "warn" | "bad";
}

export function serving(endpoints: Record<string, number> | undefined, numbers: Numbers | undefined): Serving {
  const all = Object.values(endpoints ?? {}).reduce((sum, count) => sum + count, 0);
  const serves = endpoints?.serving ?? 0;
  if (all > 0) return { text: `${serves}/${all}`, tone: serves === 0 ? "bad" : serves < all ? "warn" : "" };
  // Without its records it is not known whether there is any.
  return endpoints && numbers && numbers[0] > 0 ? { text: "0", tone: "bad" } : { text: "", tone: "" };
}

/** The services of a tenant, or of all, with those that have calls and no record left: they have no endpoint either. */
export function withCalled(mesh: Mesh, calls: Calls, tenant: string): Mesh {
  const services = new Map(mesh.services);
  for (const [name, numbers] of calls.rows) {
    const isService = name.includes("/") && !name.includes("\n") && hasPage(name);
    if (!isService || !(numbers[0] > 0) || services.has(name) || (tenant && tenantOf(name) !== tenant)) continue;
    services.set(name, { kind: null, protocol: null, endpoints: {} });
  }
  return { ...mesh, services };
}

/** How bad a row is: `none` without calls, `old` without news. */
export type Level = "good" | "warn" | "bad" | "none" | "old";

export function level(numbers: Numbers | undefined): Level {
  if (!numbers) return "none";
  if (numbers[0] < 0 || numbers[6] >= OLD_MS) return "old";
  if (numbers[0] === 0) return "none";
  if (numbers[2] >= 0.05) return "bad";
  return numbers[2] >= 0.005 ? "warn" : "good";
}

/** Services whose name contains all words of a text, the busiest first. */
export interface Row {
  name: string;
  numbers?: Numbers;
  listed?: Listed;
}

export function rows(calls: Calls, mesh: Mesh, text: string): Row[] {
  const found = new Map<string, Row>();
  for (const [name, listed] of mesh.services) found.set(name, { name, listed });
  for (const [name, numbers] of calls.rows) {
    if (!name.includes("\n")) found.set(name, { ...(found.get(name) ?? { name }), numbers });
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = [...found.values()].filter((row) => words.every((word) => row.name.toLowerCase().includes(word)));
  return matching.sort((one, other) => (other.numbers?.[0] ?? -1) - (one.numbers?.[0] ?? -1) || (one.name < other.name ? -1 : 1));
}

/** Rows of a service in several regions, as one: the sum, and its parts by region. */
export interface Group {
  name: string;
  numbers: Numbers | undefined;
  listed: Listed | undefined;
  parts: { region: string; numbers: Numbers | undefined }[];
}

/** Folds rows that differ by region alone, in the order of their first; `other` tells the name, and `region` what tells its rows apart. */
export function foldRegions<T extends { numbers?: Numbers; listed?: Listed }>(rows: T[], other: (row: T) => string, region: (row: T) => string): Group[] {
  const groups = new Map<string, Group>();
  for (const row of rows) {
    const name = serviceOf(other(row));
    const known = groups.get(name) ?? { name, numbers: undefined, listed: row.listed, parts: [] };
    if (row.numbers) known.numbers = known.numbers ? add(known.numbers, row.numbers) : row.numbers;
    known.parts.push({ region: region(row), numbers: row.numbers });
    groups.set(name, known);
  }
  return [...groups.values()];
}

/** The region of a name; a dash if it has none. */
export function regionOf(name: string): string {
  return name.split("@")[1] ?? "–";
}

/** Columns by which services are sorted, and where their numbers are. */
export const SORTS: Record<string, number> = { service: -1, "calls/s": 0, failed: 2, p50: 3, p99: 4 };

/** Rows by a column: names upwards, numbers downwards. */
export function sorted<T extends { name: string; numbers?: Numbers | undefined }>(rows: T[], by: string): T[] {
  const at = Object.hasOwn(SORTS, by) ? SORTS[by] : undefined;
  if (at === undefined) return rows;
  if (at < 0) return [...rows].sort((one, other) => (one.name < other.name ? -1 : 1));
  return [...rows].sort((one, other) => (other.numbers?.[at] ?? -1) - (one.numbers?.[at] ?? -1));
}

/** The busiest callers and services of a matrix, and its cells. */
export interface Matrix {
  callers: string[];
  services: string[];
  cells: Map<string, Numbers>;
  hiddenCallers: number;
  hiddenServices: number;
}

export function matrix(edges: Edge[], text: string, most: number): Matrix {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (edge: Edge) => words.every((word) => `${edge.from} ${edge.to}`.toLowerCase().includes(word));
  const shown = edges.filter(has);
  const callers = busiest(shown, (edge) => edge.from);
  const services = busiest(shown, (edge) => edge.to);
  const cells = new Map(shown.map((edge) => [`${edge.from}\n${edge.to}`, edge.numbers]));
  return {
    callers: callers.slice(0, most),
    services: services.slice(0, most),
    cells,
    hiddenCallers: Math.max(callers.length - most, 0),
    hiddenServices: Math.max(services.length - most, 0),
  };
}

function busiest(edges: Edge[], of: (edge: Edge) => string): string[] {
  const rates = new Map<string, number>();
  for (const edge of edges) rates.set(of(edge), (rates.get(of(edge)) ?? 0) + Math.max(edge.numbers[0], 0));
  return [...rates].sort(([, one], [, other]) => other - one).map(([name]) => name);
}
