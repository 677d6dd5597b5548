/** Decisions about streams, apart from their state. */

const RETRY_MS = 2_000;
/** A stream that lasted ends by its age; one that ends earlier may do so again at once, such as in a drain. */
const LASTED_MS = 30_000;

/** The headers of a request by the page. A token is never sent in plaintext: the control plane would refuse it there. */
export function authorization(protocol: string, token: string): Record<string, string> {
  return protocol === "https:" && token ? { authorization: `Bearer ${token}` } : {};
}

/** How long to wait until a stream that has ended is opened again. */
export function pause(connected: boolean, lastedMs: number): number {
  return connected && lastedMs >= LASTED_MS ? 0 : RETRY_MS;
}

/** The data of an event: rows that are new or changed, and names of those that are gone. */
export interface Update {
  /** All rows are in it. */
  whole: boolean;
  head: unknown;
  rows: Record<string, unknown>;
  gone: string[];
}

/** The rows of an event after an update. */
export function updated(known: ReadonlyMap<string, unknown>, { whole, rows, gone }: Update): Map<string, unknown> {
  const now = new Map(whole ? [] : known);
  for (const [name, row] of Object.entries(rows)) now.set(name, row);
  for (const name of gone) now.delete(name);
  return now;
}
