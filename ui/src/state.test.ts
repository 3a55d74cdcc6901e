import { describe, expect, it } from "vitest";
import type { VersionRow } from "./api/client";
import { label, look, phases, rewritten, sinkState, versionState, written } from "./state";

const COMMITTED: VersionRow = {
  version: 3,
  kind: "batch",
  description: "batch",
  of_kind: {
    label: "committed",
    color: "green.solid",
    has_rows: true,
    stages: true,
    uses_spec: true,
    is_announced: true,
  },
  result: "commit",
  replaces: null,
  replaced_by: null,
  rolls_back_to: null,
  is_rolled_back: false,
  is_expired: false,
  has_gaps: false,
  partitions: 1,
  files: 1,
  bytes: 10,
  counts: { read: 7, "written.a": 2, "written.b": 3 },
  rewritten: {},
  watermark_ms: null,
  planned_at_ms: 0,
  decided_at_ms: 1,
  published_at_ms: null,
  duration_ms: 1,
  planning_ms: 0,
  staged_ms: 1,
  publishing_ms: null,
  lag: null,
  sinks: { a: "committed" },
  run_key: "run",
  failed_gates: [],
  reason: "",
  changed: [],
};

const NOTE = {
  kind: "note",
  of_kind: { ...COMMITTED.of_kind, label: "note", color: "gray.solid", has_rows: false },
};

const row = (changes: Partial<VersionRow>): VersionRow => ({ ...COMMITTED, ...changes });

describe("the state of a version", () => {
  it("follows from its result and its kind", () => {
    expect(versionState(COMMITTED)).toBe("committed");
    expect(versionState(row({ result: "open", decided_at_ms: null }))).toBe("open");
    expect(versionState(row({ result: "abort" }))).toBe("aborted");
    expect(versionState(row({ result: "publishing" }))).toBe("pending");
    expect(versionState(row(NOTE))).toBe("committed");
    expect(look(row(NOTE), "committed").color).toBe("gray.solid");
    expect(look(row(NOTE), "aborted").color).toBe("red.solid");
    expect(versionState(row({ kind: "reprocess", is_rolled_back: true }))).toBe("rolled_back");
    expect(versionState(row({ result: "abort", is_rolled_back: true }))).toBe("aborted");
    expect(versionState(row({ replaced_by: 7 }))).toBe("replaced");
  });

  it("has a text that names the kind of a version without records once", () => {
    expect([row({}), row(NOTE)].map(label)).toEqual(["committed", "note"]);
    expect([row({ result: "abort" }), row({ ...NOTE, result: "abort" })].map(label)).toEqual([
      "aborted",
      "aborted (note)",
    ]);
  });

  it("has a text that says whether the version has expired", () => {
    expect(label(row({ is_expired: true }))).toBe("committed, expired");
    expect(label(row({ ...NOTE, is_expired: true, result: "abort" }))).toBe("aborted (note), expired");
    expect(versionState(row({ is_expired: true }))).toBe("committed");
  });

  it("is that of a rewrite only for the sink whose rows it has", () => {
    const rewrite = row({ ...NOTE, sinks: {}, counts: {}, rewritten: { a: 12 } });
    expect([sinkState(rewrite, "a"), sinkState(rewrite, "b")]).toEqual(["committed", "none"]);
    expect([rewritten(rewrite), written(rewrite), rewritten(COMMITTED)]).toEqual([12, 0, 0]);
  });

  it("is pending only for the sinks without a receipt", () => {
    const publishing = row({ result: "publishing", sinks: { files: "committed", table: "waiting" } });
    expect(sinkState(publishing, "table")).toBe("pending");
    expect(sinkState(publishing, "files")).toBe("committed");
    expect(sinkState(row({ sinks: { table: "applied" } }), "table")).toBe("committed");
    expect(sinkState(row({ sinks: { table: "skipped" } }), "table")).toBe("skipped");
    expect(sinkState(row({ sinks: { http: "unknown" } }), "http")).toBe("unknown");
    expect(sinkState(COMMITTED, "another")).toBe("none");
  });

  it("has phases that add up to its duration and the time of publishing", () => {
    const slow = row({ duration_ms: 9_000, planning_ms: 1_000, staged_ms: 6_000, publishing_ms: 4_000 });
    expect(phases(slow)).toEqual({ plan: 1, stage: 6, commit: 2, publish: 4 });
    expect(phases(row({ duration_ms: null, staged_ms: null }))).toEqual({ plan: 0, stage: 0, commit: 0, publish: 0 });
    expect(phases(row({ duration_ms: 5, staged_ms: 9 })).commit).toBe(0);
  });

  it("counts the rows of all sinks", () => {
    expect(written(COMMITTED)).toBe(5);
  });
});
