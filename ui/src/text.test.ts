import { describe, expect, it } from "vitest";
import { age, count, duration, guarantee, size, utc } from "./text";

describe("texts", () => {
  it("show an age in the largest unit that gives a value of at least 2", () => {
    expect([0, 119_000, 120_000, 7_199_000, 7_200_000, 172_800_000].map(age)).toEqual([
      "0 s",
      "119 s",
      "2 min",
      "119 min",
      "2 h",
      "2 d",
    ]);
    expect(age(-5)).toBe("0 s");
  });

  it("show a duration with its unit, and nothing without one", () => {
    expect([0, 999, 1_000, 119_900, 120_000].map((ms) => duration(ms))).toEqual([
      "0 ms",
      "999 ms",
      "1.0 s",
      "119.9 s",
      "2 min",
    ]);
    expect([duration(null), utc(null), count(undefined)]).toEqual(["", "", ""]);
  });

  it("show times in UTC, and sizes in powers of 1000", () => {
    expect(utc(1_700_000_000_000)).toBe("2023-11-14 22:13:20");
    expect([0, 999, 1_000, 1_500_000, 2e15].map(size)).toEqual(["0 B", "999 B", "1.0 kB", "1.5 MB", "2000.0 TB"]);
  });

  it("show each distinct label of the sinks once, with its condition", () => {
    expect(guarantee({ a: "exactly_once", b: "exactly_once" }, "")).toBe("exactly-once");
    expect(guarantee({ a: "exactly_once", b: "at_least_once" }, "dedup 24 h")).toBe(
      "exactly-once, at-least-once (dedup 24 h)",
    );
  });
});
