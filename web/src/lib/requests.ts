import { UNKNOWN } from "./format.ts";

/** The event `lastRequests` of `/ui/api/requests/TENANT/SERVICE`: the proxies whose requests are shown. */
export interface Proxies {
  proxies: { address: string; problem: string | null; /** Live requests that are not shown, since too many came at once. */ shed: number }[];
}

/** What both kinds of requests have. Times are seconds since 1970. */
interface Seen {
  time: number;
  method: string;
  path: string;
  status: number;
  caller: string;
  fault?: string;
  proxy: string;
}

/** A row of the event `lastRequests`: a request with its decision, up to its response. */
export interface LastRequest extends Seen {
  ms: number;
  steps: { step: string; detail: string }[];
  attempts: { service: string; instance: string; region: string; revision: number; ms: number; outcome: string }[];
}

/** A row of the event `liveRequests`: a request that has completed. */
export interface LiveRequest extends Seen {
  totalMs: number;
  instance?: string;
  region?: string;
  route?: string;
  backend?: string;
  injected?: string;
  ended?: string;
  grpcStatus?: number;
}

/** Rows by their names, which grow with time: the newest first. */
export function newest<T>(rows: ReadonlyMap<string, T>): [string, T][] {
  return [...rows].sort(([one], [other]) => (one < other ? 1 : -1));
}

/** No server responded, or one with 500 and above or an error of gRPC. */
export function hasFailed(one: { status: number; fault?: string; grpcStatus?: number; ended?: string }): boolean {
  return one.fault !== undefined || one.status >= 500 || (one.grpcStatus ?? 0) > 0 || one.ended === "broken";
}

/** The outcome of a request in words. */
export function result(one: { status: number; fault?: string; grpcStatus?: number; ended?: string; injected?: string }): string {
  const more = [one.grpcStatus ? `gRPC ${one.grpcStatus}` : "", one.fault, one.injected ? `injected ${one.injected}` : "", one.ended?.replace("_", " ")];
  return [String(one.status), ...more.filter(Boolean)].join(", ");
}

/** Where the last attempt of a request went. */
export function wentTo(one: LastRequest): string {
  const last = one.attempts.at(-1);
  if (!last) return UNKNOWN;
  return `${last.instance} in ${last.region}${one.attempts.length > 1 ? `, attempt ${one.attempts.length}` : ""}`;
}

/** The time of day of seconds since 1970: `22:41:07.123`, in UTC. */
export function clock(seconds: number): string {
  const time = new Date(seconds * 1000);
  return Number.isNaN(time.getTime()) ? UNKNOWN : time.toISOString().slice(11, 23);
}
