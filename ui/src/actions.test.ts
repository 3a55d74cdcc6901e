import { describe, expect, it } from "vitest";
import { missing, params, suggested } from "./actions";
import type { VersionRow } from "./api/client";

const ROW = { version: 7, kind: "batch", result: "commit", replaces: null, replaced_by: null } as VersionRow;

describe("the params of a form", () => {
  it("are those of a dry run, without empty fields", () => {
    expect(params("reprocess", { versions: " 3-7, 9 ", since: " ", offsets: "a=0:1, b/2=3:4," }, "s3://log")).toEqual({
      action: "reprocess",
      dry_run: true,
      log: "s3://log",
      versions: "3-7, 9",
      offsets: ["a=0:1", "b/2=3:4"],
    });
  });

  it("contain only the fields of the action", () => {
    expect(params("vacuum", { all_versions: "yes", versions: "3" }, "log")).toEqual({
      action: "vacuum",
      dry_run: true,
      log: "log",
      all_versions: true,
    });
  });
});

describe("a form", () => {
  it("needs a reason for an abort and a skip only", () => {
    expect(missing("abort", { reason: " " })).toEqual(["Reason"]);
    expect(missing("skip", { reason: "poison" })).toEqual([]);
    expect(missing("vacuum", {})).toEqual([]);
  });

  it("suggests what can be done with a version", () => {
    expect(suggested(undefined).action).toBe("verify");
    expect(suggested({ ...ROW, result: "open" })).toEqual({ action: "abort", values: {} });
    expect(suggested({ ...ROW, result: "publishing" }).action).toBe("skip");
    expect(suggested(ROW)).toEqual({ action: "reprocess", values: { versions: "7" } });
    expect(suggested({ ...ROW, replaced_by: 9 }).action).toBe("reprocess");
    expect(suggested({ ...ROW, kind: "reprocess", replaces: 2 }).action).toBe("verify");
    expect(suggested({ ...ROW, is_rolled_back: true }).action).toBe("verify");
    expect(suggested({ ...ROW, kind: "reprocess", result: "held" }).action).toBe("abort");
  });
});
