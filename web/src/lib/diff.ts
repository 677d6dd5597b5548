/** Documents as lines, and the difference of two of them. */

/** A document as YAML would have it, for reading. */
export function lines(value: unknown, indent = ""): string[] {
  if (Array.isArray(value)) {
    if (value.length === 0) return [`${indent}[]`];
    return value.flatMap((item: unknown) => {
      const [first = "", ...rest] = lines(item, `${indent}  `);
      return [`${indent}- ${first.trimStart()}`, ...rest];
    });
  }
  if (value && typeof value === "object") {
    const fields = Object.entries(value).filter(([, field]) => field !== null && field !== undefined);
    if (fields.length === 0) return [`${indent}{}`];
    return fields.flatMap(([name, field]) => {
      const below = lines(field, `${indent}  `);
      const isShort = below.length === 1 && (typeof field !== "object" || /^\s*(\[\]|\{\})$/.test(below[0] ?? ""));
      return isShort ? [`${indent}${name}: ${(below[0] ?? "").trimStart()}`] : [`${indent}${name}:`, ...below];
    });
  }
  return [`${indent}${typeof value === "string" ? value : JSON.stringify(value)}`];
}

export interface Line {
  sign: " " | "+" | "-";
  text: string;
}

/** The longest common subsequence: documents have tens of lines. */
export function diff(old: string[], now: string[]): Line[] {
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      const below = common[(i + 1) * width + j] ?? 0;
      const right = common[i * width + j + 1] ?? 0;
      common[i * width + j] = old[i] === now[j] ? (common[(i + 1) * width + j + 1] ?? 0) + 1 : Math.max(below, right);
    }
  }
  const out: Line[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    const [a, b] = [old[i], now[j]];
    if (a !== undefined && a === b) {
      out.push({ sign: " ", text: a });
      i += 1;
      j += 1;
    } else if (a !== undefined && (b === undefined || (common[(i + 1) * width + j] ?? 0) >= (common[i * width + j + 1] ?? 0))) {
      out.push({ sign: "-", text: a });
      i += 1;
    } else {
      out.push({ sign: "+", text: b ?? "" });
      j += 1;
    }
  }
  return out;
}
