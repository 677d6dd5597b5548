import { UNKNOWN, digits } from "./format.ts";

/** The event `topology` of `/ui/api/regions`. */
export interface Topology {
  regions: { name: string; declared: boolean; continent: string | null; neighbours: string[]; endpoints: number; serving: number; /** Services that cannot carry all their calls there, with the part that they carry. */ overflowing: [string, number][]; moreOverflowing: number }[];
  /** From, to, µs, and the age of the measurement; null: declared. */
  roundTrips: [string, string, number, number | null][];
}

/** The ages of the newest and of the oldest measured round trip; null: none is measured. */
export function measuredAges(topology: Topology): [number, number] | null {
  const ages = topology.roundTrips.map(([, , , age]) => age).filter((age) => age !== null);
  return ages.length ? [Math.min(...ages), Math.max(...ages)] : null;
}

/** Regions whose endpoints cannot carry all calls of a service, with the part that they carry: callers adjust the planner's tables to it. */
export function partlyCarried(topology: Topology | null, service: string): [string, number][] {
  const carried = (topology?.regions ?? []).map((region): [string, number | undefined] => [region.name, region.overflowing.find(([name]) => name === service)?.[1]]);
  return carried.filter((one): one is [string, number] => one[1] !== undefined);
}

/** The event `regionCalls`: for each step, oldest first, null in a gap. */
export interface RegionCalls {
  stepMs: number;
  /** The busiest regions: the calls per second that they receive, and the part of their callers' calls that leaves them. */
  regions: { region: string; received: (number | null)[]; crossing: (number | null)[] }[];
  moreRegions: number;
  /** The part of all calls that leaves its region. */
  crossing: (number | null)[];
}

/** The load of a planned service over time by region: its calls by the calls that are a load of 1, as its servers report now. */
export function loads(calls: RegionCalls, plan: Plan): { region: string; values: (number | null)[] }[] {
  const each = calls.regions.map(({ region, received }) => {
    const now = plan.regions.find((one) => one.region === region);
    if (!now || !now.load || !(now.received > 0)) return null;
    const capacity = now.received / now.load;
    return { region, values: received.map((value) => (value === null ? null : value / capacity)) };
  });
  return each.filter((one) => one !== null);
}

/** The event `drains`. */
export interface Drain {
  region: string;
  phase: string | null;
  keep: number | null;
  stepsMade: number | null;
  steps: number;
  until: string | null;
  state: string;
  held: boolean;
  staying: string[];
  services: number | null;
}

export interface Change {
  agoMs: number;
  from: string;
  class: string | null;
  text: string;
}

/** A row of the event `planner`. */
export interface Planned {
  planner: string;
  mode: string;
  plannedAgoMs: number | null;
  confirmedAgoMs: number | null;
  refusal: string | null;
  whyRings: string | null;
  gap: number | null;
  offered: number;
  dropped: number;
  /** Regions whose reports imply a capacity that the planner doubts, and why. */
  doubts: [string, string][];
  change: Change | null;
}

/** The event `plan` of `/ui/api/planner/TENANT/SERVICE`. */
export interface Plan extends Planned {
  name: string;
  round: number;
  plannedRounds: number;
  refusedRounds: number;
  regions: { region: string; endpoints: number; load: number | null; predicted: number | null; offered: number; received: number; unreported: number; serversAgoMs: number | null; callersAgoMs: number | null; zones: Zone[]; zoneRefusal: string | null }[];
  tables: { from: string; class: string | null; to: [string, number][]; dropped: number }[];
  shifts: Change[];
  optimized: {
    number: number;
    gap: number;
    plannedAgoMs: number;
    modelAgeMs: number;
    modelError: number;
    expected: { from: string; class: string | null; calls: number; latencyMs: number; egress: number }[];
    corrections: Correction[];
    attempts: Attempt[];
  } | null;
}

/** Calls between two zones of a region, and the planned share of the calls that stay in the region. */
export interface Zone {
  from: string;
  to: string;
  share: number;
  calls: number;
  bytes: number;
}

/** A pool whose calls cost something else than the optimizer's model says: milliseconds of a call, or cores. */
export interface Correction {
  kind: "latency" | "work";
  region: string;
  class: string | null;
  model: number;
  measured: number;
  error: number | null;
  /** Milliseconds that are added to each call, or the factor of the work. */
  by: number;
  beganAgoMs: number;
  calls: number;
}

/** A part of the calls that the optimizer moved, and measured. */
export interface Attempt {
  callers: string;
  class: string | null;
  from: string;
  to: string;
  share: number;
  beforeMs: number;
  afterMs: number | null;
  errorMs: number;
  beganAgoMs: number;
  outcome: string;
}

const OUTCOMES: Record<string, string> = {
  running: "being measured",
  kept: "kept: calls are faster",
  notBetter: "rolled back: calls are not clearly faster",
  worse: "rolled back: calls are slower",
  tooFull: "rolled back: a pool was too full",
  replanned: "ended by another plan",
};

/** A correction in words: by how much, what the model says, and what was measured. */
export function corrected(one: Correction): { by: string; model: string; measured: string } {
  const sign = one.by < 0 ? "−" : "+";
  if (one.kind === "work") return { by: `× ${digits(one.by)}`, model: `${digits(one.model)} cores`, measured: `${digits(one.measured)} cores` };
  return { by: `${sign}${digits(Math.abs(one.by))} ms`, model: `${digits(one.model)} ms`, measured: `${digits(one.measured)} ± ${digits(one.error ?? 0)} ms` };
}

/** What an attempt changed, and how it ended. */
export function attempted(one: Attempt): { effect: string; outcome: string } {
  const change = one.afterMs === null ? null : one.afterMs - one.beforeMs;
  const effect = change === null ? UNKNOWN : `${change < 0 ? "−" : "+"}${digits(Math.abs(change))} ± ${digits(one.errorMs)} ms`;
  return { effect, outcome: OUTCOMES[one.outcome] ?? one.outcome };
}

/** A row of the event `probes`, by both places on two lines. */
export interface Probed {
  verdict: string;
  fault: string | null;
  ageMs: number;
  protocols: { protocol: string; passed: number; failed: number; tookUs: number | null }[];
}

/** `/ui/api/forecast/REGION`. */
export interface Forecast {
  services: {
    service: string;
    refusal: string;
    hold: string;
    leaving: number;
    staying: number;
    dropped: number;
    ofOthers: number;
    regions: { region: string; before: number; after: number; calls: number; roundTripUs: number | null; full: boolean; timeNowUs: number | null; timeAfterUs: number | null }[];
  }[];
  unmoved: { service: string; reason: string }[];
}

/** The places of a matrix of probes, in the order of their names. */
export function places(probes: ReadonlyMap<string, Probed>): string[] {
  return [...new Set([...probes.keys()].flatMap((pair) => pair.split("\n")))].sort();
}

/** The time of the first protocol that passed, in µs. */
export function took(probed: Probed): number | null {
  return probed.protocols.find((one) => one.tookUs !== null)?.tookUs ?? null;
}
