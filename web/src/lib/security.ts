import { instant } from "./format.ts";

/** The event `authority` of `/ui/api/security`. */
export interface Authority {
  domain: string | null;
  certificates: { kind: string; digest: string | null; expires: string | null }[];
  openTokens: number;
  rootKeyPresent: boolean;
}

/** The event `identities`. */
export interface Identities {
  agents: { id: string; tenants: string[]; region: string | null; joined: string }[];
  programs: { id: string; connected: number }[];
  revoked: { id: string; certificates: string; at: string }[];
  notListed: number;
}

/** A row of the event `protection`, by service. */
export interface Protection {
  permissive: boolean;
  endpoints: number;
  plaintext: number;
  /** `enforced`, `audited` or `none`. */
  rules: string;
  callers: { address: string; connections: number; agoMs: number }[];
  moreCallers: number;
}

/** Calls of a caller that rules refuse, or would refuse. */
export interface Denied {
  service?: string;
  caller: string | null;
  rule: string | null;
  /** Method and path of the calls; neither of a connection, and of servers of an older release. */
  method: string | null;
  path: string | null;
  audit: boolean;
  count: number;
  /** Minutes since that of the last call; 0: the present one. */
  minutesAgo: number;
}

/** The call that was refused, as its method and path, in which ids are `*`. */
export function refusedCall({ method, path }: Denied): string {
  return [method, path].filter(Boolean).join(" ") || "–";
}

/** When something was last counted, by its minute: the age, and the minute as a time. */
export function lastMinute(minutesAgo: number, now: number): { words: string; at: string } {
  const minute = (Math.floor(now / 60_000) - minutesAgo) * 60_000;
  return { words: minutesAgo === 0 ? "this minute" : `${minutesAgo} min ago`, at: instant(minute).replace(/:00Z$/, "Z") };
}

/** A call that the control plane refused. */
export interface RefusedCall {
  number: number;
  atMs: number;
  caller: string;
  /** The method or path; a connection that was refused has none. */
  what: string;
  reason: string;
}

/** The refused calls among entries. */
export function refusedCalls(entries: Entry[]): RefusedCall[] {
  const text = (value: unknown) => (typeof value === "string" ? value : "");
  return entries
    .filter((entry) => entry.event === "denied")
    .map(({ number, atMs, who, details }) => ({ number, atMs, caller: who, what: text(details?.method) || "connection", reason: text(details?.reason) }));
}

/** An entry of `/ui/api/audit/LOG`. */
export interface Entry {
  number: number;
  atMs: number;
  who: string;
  message: string | null;
  changes: { key: string; what: string }[];
  allChanges: number;
  event: string | null;
  details: Record<string, unknown> | null;
}

export const DAY_MS = 86_400_000;

/** Days until a time; negative once it is past. */
export function daysUntil(time: string, now: number): number {
  return Math.floor((Date.parse(time) - now) / DAY_MS);
}

/** The newest certificate of each identity, the oldest first: identities whose certificates are not renewed stand out. */
export function issued(entries: Entry[]): { identity: string; atMs: number; count: number }[] {
  const found = new Map<string, { identity: string; atMs: number; count: number }>();
  for (const entry of entries) {
    const identity = entry.event === "certificate" ? entry.details?.identity : undefined;
    if (typeof identity !== "string") continue;
    const known = found.get(identity) ?? { identity, atMs: 0, count: 0 };
    found.set(identity, { identity, atMs: Math.max(known.atMs, entry.atMs), count: known.count + 1 });
  }
  return [...found.values()].sort((one, other) => one.atMs - other.atMs);
}

/** What an entry did, in a line. */
export function words(entry: Entry): string {
  if (!entry.event) {
    const more = entry.allChanges > entry.changes.length ? `, and ${entry.allChanges - entry.changes.length} more` : "";
    return entry.changes.map((change) => `${change.what} ${change.key}`).join(", ") + more;
  }
  const [refused] = refusedCalls([entry]);
  if (refused) return `refused ${refused.what}: ${refused.reason}`;
  return `${entry.event}: ${Object.values(entry.details ?? {}).map(String).join(", ")}`;
}
