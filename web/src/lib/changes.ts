/** What changed and when, and its marks in charts. Pure: the same changes give the same marks. */

import { age, instant } from "./format.ts";

/** A row of the event `changes`. */
export interface Changed {
  atMs: number;
  kind: string;
  text: string;
  by: string | null;
  message: string | null;
}

/** The event `changes` of a service, and of the mesh. */
export interface Changes {
  changes: Changed[];
  leftOut: number;
}

/** A line in a chart: changes that are too close to be drawn apart. */
export interface Mark {
  /** Seconds since 1970. */
  at: number;
  changes: Changed[];
}

/** The most changes that a mark names. */
const MOST_NAMED = 6;

/** Marks within the times of a chart, in their order; `apart`: the seconds between two marks at least. */
export function marks(changes: Changed[], [from, to]: [number, number], apart: number): Mark[] {
  const found: Mark[] = [];
  const inside = changes.filter(({ atMs }) => atMs >= from * 1000 && atMs <= to * 1000);
  for (const change of inside.sort((one, other) => one.atMs - other.atMs)) {
    const last = found.at(-1);
    if (last && change.atMs / 1000 - last.at < apart) last.changes.push(change);
    else found.push({ at: change.atMs / 1000, changes: [change] });
  }
  return found;
}

/** The mark that is nearest to a time, if one is within these seconds. */
export function nearest(all: Mark[], at: number, within: number): Mark | undefined {
  const distance = (mark: Mark) => Math.abs(mark.at - at);
  const best = all.reduce<Mark | undefined>((best, mark) => (best && distance(best) <= distance(mark) ? best : mark), undefined);
  return best && distance(best) <= within ? best : undefined;
}

/** The lines of a mark's tooltip. */
export function described({ changes }: Mark, now: number): string[] {
  const lines = changes.slice(0, MOST_NAMED).map(({ atMs, text, by }) => `${instant(atMs)} (${age(atMs, now)}): ${text}${by ? `, by ${by}` : ""}`);
  const more = changes.length - lines.length;
  return more > 0 ? [...lines, `and ${more} more`] : lines;
}
