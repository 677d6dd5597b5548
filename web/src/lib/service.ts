import type { Numbers } from "./graph.ts";

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
  cores: number | null;
}

/** The other service, the class, both regions, and the calls. */
export type Path = [string, string, [string, string], Numbers];

/** Its event `calls`. */
export interface ServiceCalls {
  callers: Path[];
  called: Path[];
  outcomes: Record<string, number>;
  denied: { caller: string; rule: string; audit: boolean; count: number }[];
  steps: { stepMs: number; rate: Series; failed: Series; p50Us: Series; p99Us: Series };
  windowMs: number;
  historyMs: number;
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

/** The time of each step, in seconds since 1970. The last step is the present one. */
export function times(steps: number, stepMs: number, now: number): number[] {
  const last = Math.floor(now / stepMs) * stepMs;
  return Array.from({ length: steps }, (_, at) => (last - (steps - 1 - at) * stepMs) / 1000);
}
