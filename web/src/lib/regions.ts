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
  change: Change | null;
}

/** The event `plan` of `/ui/api/planner/TENANT/SERVICE`. */
export interface Plan extends Planned {
  name: string;
  round: number;
  plannedRounds: number;
  refusedRounds: number;
  regions: { region: string; endpoints: number; load: number | null; predicted: number | null; offered: number; received: number; unreported: number; serversAgoMs: number | null; callersAgoMs: number | null; zoneRefusal: string | null }[];
  tables: { from: string; class: string | null; to: [string, number][]; dropped: number }[];
  shifts: Change[];
  optimized: {
    number: number;
    gap: number;
    plannedAgoMs: number;
    modelAgeMs: number;
    modelError: number;
    expected: { from: string; class: string | null; calls: number; latencyMs: number; egress: number }[];
  } | null;
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
