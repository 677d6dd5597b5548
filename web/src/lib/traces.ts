/** What the page of traces shows. Pure: the same traces give the same rows. */

/** A row of the event `traces` of `/ui/api/traces`, by the id of the trace. */
export interface Trace {
  /** Service and name of the first span. */
  service: string | null;
  name: string;
  durationUs: number;
  spans: number;
  ageMs: number;
  /** HTTP status of the first span. */
  status: number | null;
  failed: boolean;
  /** Why a span failed, and of which service it is. */
  error: string | null;
  failedService: string | null;
}

/** The head of both events where there is nothing: the control plane takes no spans, or has no such trace. */
export interface Nothing {
  off?: boolean;
  gone?: boolean;
}

/** The event `traces`. */
export interface Traces extends Nothing {
  notShown: number;
  leftOut: number;
}

/** A span, behind its parent. */
export interface Span {
  depth: number;
  kind: "client" | "server" | "internal";
  service: string | null;
  process: string | null;
  name: string;
  startUs: number;
  durationUs: number;
  status: number | null;
  error: string | null;
  instance: string | null;
  address: string | null;
  region: string | null;
  revision: number | null;
}

/** The event `trace` of `/ui/api/trace/ID`. */
export interface Waterfall extends Nothing {
  trace: Trace | null;
  spans: Span[];
  hiddenSpans: number;
  /** The same trace in another tracing system. */
  link: string | null;
}

export const ORDERS = { slowest: "slowest first", newest: "newest first" };
export type Order = keyof typeof ORDERS;

export function ordered(traces: ReadonlyMap<string, Trace>, order: Order): [string, Trace][] {
  const slower = (one: Trace, other: Trace) => other.durationUs - one.durationUs;
  return [...traces].sort(([a, one], [b, other]) => (order === "newest" && one.ageMs - other.ageMs) || slower(one, other) || (a < b ? -1 : 1));
}

/** How a trace ended: `bad` if the whole call failed, `warn` if only a call within it did, such as an attempt that was repeated. */
export function outcome({ status, failed, error, failedService, service }: Trace): { words: string; tone: "bad" | "warn" | "" } {
  if (!failed) return { words: status === null ? "ok" : String(status), tone: "" };
  const isWhole = failedService === service && (status === null || status >= 400);
  // Behind a semicolon is the remedy, which the trace itself shows.
  const reason = error === String(status) ? "failed" : (error?.split(";")[0] ?? "failed");
  // Reasons of the mesh begin with the service.
  const of = failedService === service || (failedService && reason.startsWith(failedService)) ? "" : `${failedService ?? "a program"}: `;
  return { words: `${status === null ? "" : `${status}, `}${of}${reason}`, tone: isWhole || status === null || status >= 500 ? "bad" : "warn" };
}

/** The services in which traces begin, with their number, the failed ones and the slowest one; the slowest service first. */
export function byService(traces: Iterable<Trace>): { service: string | null; traces: number; failed: number; slowestUs: number }[] {
  const found = new Map<string | null, { service: string | null; traces: number; failed: number; slowestUs: number }>();
  for (const { service, failed, durationUs } of traces) {
    const known = found.get(service) ?? { service, traces: 0, failed: 0, slowestUs: 0 };
    found.set(service, { service, traces: known.traces + 1, failed: known.failed + Number(failed), slowestUs: Math.max(known.slowestUs, durationUs) });
  }
  return [...found.values()].sort((one, other) => other.slowestUs - one.slowestUs);
}

/** The time of a whole waterfall, in µs: clocks differ, so that a span may end after the first one. */
export function lasts(spans: Span[]): number {
  return Math.max(1, ...spans.map((span) => span.startUs + span.durationUs));
}

/** Where the bar of a span begins and how wide it is, in parts of a hundred; short spans stay visible. */
export function bar(span: Span, wholeUs: number): { at: number; width: number } {
  const LEAST = 0.6;
  const width = Math.max((span.durationUs / wholeUs) * 100, LEAST);
  return { at: Math.min((span.startUs / wholeUs) * 100, 100 - width), width };
}

/** The status of a span, and why it failed. */
export function ended({ status, error }: Span): string {
  if (error === null) return status === null ? "ok" : String(status);
  return status === null || error === String(status) ? error : `${status} ${error}`;
}

/** The host of a link, by which it is named. */
export function hostOf(link: string): string {
  return URL.canParse(link) ? new URL(link).host : link;
}
