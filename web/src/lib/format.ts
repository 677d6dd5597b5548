/** Numbers as texts. What is not known (below zero, or absent) is a dash: it is never shown as zero. */
export const UNKNOWN = "–";

type Maybe = number | null | undefined;

function known(value: Maybe): value is number {
  return value !== null && value !== undefined && Number.isFinite(value) && value >= 0;
}

/** Three digits: `0.42`, `12.3`, `1,234`. */
export function digits(value: number): string {
  const places = value === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  // A sum of nothing may be -0, which would be shown with its sign.
  return (value || 0).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** An average of counts: whole ones without a fraction. */
export function average(value: number): string {
  return Number.isInteger(value) ? value.toLocaleString("en") : digits(value);
}

export function rate(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  if (value >= 100_000) return `${digits(value / 1000)}k`;
  return digits(value);
}

export function percent(part: Maybe): string {
  if (!known(part)) return UNKNOWN;
  if (part === 0) return "0 %";
  if (part < 0.0001) return "< 0.01 %";
  return `${digits(part * 100)} %`;
}

export function micros(us: Maybe): string {
  if (!known(us)) return UNKNOWN;
  if (us >= 1_000_000) return `${digits(us / 1_000_000)} s`;
  return us >= 1_000 ? `${digits(us / 1_000)} ms` : `${Math.round(us)} µs`;
}

export function bytes(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? digits(value) : Math.round(value)} ${units[unit]}`;
}

/** A duration in the unit that says enough: `4 s`, `12 min`, `3 h`. */
export function duration(ms: Maybe): string {
  if (!known(ms)) return UNKNOWN;
  const seconds = ms / 1000;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

/** How long ago something was; `never` if it is not known. */
export function ago(ms: Maybe): string {
  return known(ms) ? `${duration(ms)} ago` : "never";
}

/** Cores: thousandths below one, and three digits above. */
export function cores(value: number): string {
  const size = Math.abs(value);
  const places = size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** A time as `2026-11-28 22:41:07Z`. */
export function instant(time: number | string): string {
  return new Date(time).toISOString().replace("T", " ").replace(/\.\d+Z/, "Z");
}

/** How long before or after now a time is: `5 s ago`, `in 3 min`. */
export function age(time: number | string, now: number): string {
  const ms = now - new Date(time).getTime();
  return ms < 0 ? `in ${duration(-ms)}` : ago(ms);
}

/** Times in a text, with their ages beside them. */
export function withAges(text: string, now: number): string {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, (time) => `${instant(time)} (${age(time, now)})`);
}

/** A long list, folded: the first names, the rest, and the number of all that are not among the first. */
export function folded(names: string[], first: number, more = 0): { shown: string[]; rest: string[]; more: number; count: number } {
  // A single name takes no more space than its number.
  const at = names.length + more <= first + 1 ? names.length : first;
  const rest = names.slice(at);
  return { shown: names.slice(0, at), rest, more, count: rest.length + more };
}

/** The tenant and the service of a name. */
export function split(name: string): [string, string] {
  const at = name.indexOf("/");
  return at < 0 ? ["", name] : [name.slice(0, at), name.slice(at + 1)];
}
