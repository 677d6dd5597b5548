import type { Numbers } from "./graph.ts";
import type { Denied } from "./security.ts";

/** The event `service` of `/ui/api/live/TENANT/SERVICE`. */
export interface Service {
  name: string;
  declared: boolean;
  kind: string | null;
  protocol: string | null;
  policy: unknown;
  policyRevision: number | null;
  /** The rules in force; absent without any. */
  authorization: Authorization | null;
  /** What happens to calls of services without rules: `allow`, `audit` or `deny`. */
  withoutRules: string;
  endpoints: Endpoint[];
}

export interface Authorization {
  mode?: string;
  rules?: Record<string, unknown>[];
  intermediaries?: string[];
}

/** The event `behind`: callers that have not applied the newest records. */
export interface Behind {
  written: number;
  all: number;
  behind: number;
  named: { name: string; identity: string; applied: number | null }[];
}

/** The event `shards`; null of a service without a shard map. */
export interface Shards {
  version: number;
  all: number;
  listed: { shard: number; start: string; inFlight: number | null; copies: { instance: string; region: string; role: string }[] }[];
  servers: { instance: string; region: string; serves: boolean; copies: number; ageMs: number | null; callsPerSecond: number | null; inFlight: number | null }[];
  moves: { shard: number; role: string; from: string | null; to: string | null; phase: string }[];
  moreMoves: number;
}

export interface Endpoint {
  instance: string;
  address: string;
  region: string;
  zone: string | null;
  state: string;
  reason: string;
  health: { healthy: boolean; cause: string; effect: string; stale: boolean } | null;
  mtls: boolean;
  version: string | null;
  power: number;
  due: number | null;
  received: number | null;
  /** Both shares are of the same endpoints: none came or went in the minutes of the received share. */
  settled: boolean;
  cores: number | null;
}

/** The other service, the class, both regions, and the calls. */
export type Path = [string, string, [string, string], Numbers];

/** Its event `calls`. */
export interface ServiceCalls {
  callers: Path[];
  called: Path[];
  outcomes: Record<string, number>;
  denied: Denied[];
  steps: { stepMs: number; rate: Series; failed: Series; refused: Series; p50Us: Series; p99Us: Series };
  windowMs: number;
  historyMs: number;
}

/** The event `attribution`: the CPU of the service by users of it, each with seconds and part of the whole. */
export interface Attribution {
  windowMs: number;
  callers: [string, number, number][];
  /** The first services of the chains of calls. */
  origins: [string, number, number][];
}

export type Series = (number | null)[];

/** `/ui/api/history/TENANT/SERVICE`. */
export interface Version {
  revision: number;
  writtenAt: string | null;
  writtenBy: string | null;
  message: string | null;
  document: unknown;
}

/** Whether nothing is known of a service: no record, and no calls from or to it in the window. */
export function isUnknown(service: Service, calls: ServiceCalls): boolean {
  return !service.declared && service.endpoints.length === 0 && service.policyRevision === null && calls.callers.length + calls.called.length === 0;
}

/** The failed or refused part of each step. Without calls there is none, which is a gap. */
export function parts(rate: Series, some: Series): Series {
  return rate.map((all, at) => (all ? (some[at] ?? 0) / all : null));
}

/** States of endpoints that nobody chose. */
export const LOST: ReadonlySet<string> = new Set(["lost", "unhealthy", "refused"]);

/** Endpoints in the order of their list: those that do not serve first, of each kind by region and name. */
export function listed(endpoints: Endpoint[]): Endpoint[] {
  const rank = ({ state }: Endpoint) => (state === "serving" ? 2 : LOST.has(state) ? 0 : 1);
  const byText = (one: string, other: string) => one.localeCompare(other, "en", { numeric: true });
  return [...endpoints].sort((one, other) => rank(one) - rank(other) || byText(one.region, other.region) || byText(one.instance, other.instance));
}

/** What is due to endpoints: while this is another, received shares are of earlier values. */
export function dueKey(endpoints: Endpoint[]): string {
  return endpoints.map((one) => `${one.instance} ${one.region} ${one.state} ${one.power}`).sort().join("\n");
}

/** The received share is far from what is due. */
export function isOff({ due, received, settled }: Endpoint): boolean {
  return settled && due !== null && received !== null && Math.abs(received - due) > Math.max(due * 0.25, 0.02);
}

/** The time of each step, in seconds since 1970. The last step is the present one. */
export function times(steps: number, stepMs: number, now: number): number[] {
  const last = Math.floor(now / stepMs) * stepMs;
  return Array.from({ length: steps }, (_, at) => (last - (steps - 1 - at) * stepMs) / 1000);
}
