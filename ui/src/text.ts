/** Texts for numbers and times. */

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
];

/** The age of a time, such as `3 min`. */
export function age(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  for (const [size, unit] of UNITS) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${seconds} s`;
}

/** A duration in milliseconds, such as `1.4 s`. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${ms} ms`;
  return ms < 120_000 ? `${(ms / 1000).toFixed(1)} s` : age(ms);
}

/** The title of an action or of a parameter, such as `Keep versions` of `keep_versions`. */
export function title(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
}

/** A time in UTC, to the second. */
export function utc(ms: number | null | undefined): string {
  return ms === null || ms === undefined ? "" : new Date(ms).toISOString().slice(0, 19).replace("T", " ");
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : value.toLocaleString("en-US");
}

/** A size in bytes, such as `1.2 MB`. */
export function size(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${value} B` : `${value.toFixed(1)} ${units[unit]}`;
}

/** The guarantee of all sinks as one text, such as `exactly-once`. */
export function guarantee(labels: Record<string, string>, conditions: string): string {
  const distinct = [...new Set(Object.values(labels))].map((label) => label.replaceAll("_", "-"));
  return distinct.join(", ") + (conditions === "" ? "" : ` (${conditions})`);
}
