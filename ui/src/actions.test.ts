import { describe, expect, it } from "vitest";
import { isComplete, params, problem, suggested, type Values } from "./actions";
import type { ActionForm, FormField, VersionRow } from "./api/client";

const ROW = {
  version: 7,
  kind: "batch",
  of_kind: { has_rows: true },
  result: "commit",
  replaces: null,
  replaced_by: null,
} as VersionRow;

function form(name: string, ...fields: Partial<FormField>[]): ActionForm {
  const field: FormField = { name, help: "", type: "string", minimum: null, maximum: null, required: false, needs: "" };
  return { name, help: "", only_reads: false, fields: fields.map((each) => ({ ...field, ...each })) };
}

const REPROCESS = form("reprocess", { name: "versions" }, { name: "since" }, { name: "offsets", type: "array" });
const ABORT = form("abort", { name: "reason", required: true });
const VACUUM = form(
  "vacuum",
  { name: "all_versions", type: "boolean" },
  { name: "keep_versions", type: "integer", minimum: 1 },
  { name: "keep_days", type: "integer", minimum: 0, maximum: 36_500, needs: "keep_versions" },
);

describe("the params of a form", () => {
  it("are those of a dry run, without empty fields", () => {
    expect(params(REPROCESS, { versions: " 3-7, 9 ", since: " ", offsets: "a=0:1, b/2=3:4," }, "s3://log")).toEqual({
      action: "reprocess",
      dry_run: true,
      log: "s3://log",
      versions: "3-7, 9",
      offsets: ["a=0:1", "b/2=3:4"],
    });
  });

  it("contain only the fields of the action", () => {
    expect(params(VACUUM, { all_versions: "yes", versions: "3" }, "log")).toEqual({
      action: "vacuum",
      dry_run: true,
      log: "log",
      all_versions: true,
    });
  });
});

describe("the versions that a vacuum keeps", () => {
  const problems = (values: Values) =>
    VACUUM.fields.map((field) => problem(field, values)).filter((text) => text !== "");

  it("are sent as numbers, also 0 days", () => {
    expect(params(VACUUM, { keep_versions: " 100 ", keep_days: "0" }, "log")).toEqual({
      action: "vacuum",
      dry_run: true,
      log: "log",
      keep_versions: 100,
      keep_days: 0,
    });
  });

  it("are integers within the bounds of the params", () => {
    expect(problems({ keep_versions: "1", keep_days: "36500" })).toEqual([]);
    for (const value of ["0", "-1", "1.5", "1e2", "many"])
      expect(problems({ keep_versions: value })).toEqual(["An integer, 1 or more"]);
    expect(problems({ keep_versions: "1", keep_days: "36501" })).toEqual(["An integer from 0 to 36500"]);
  });

  it("are required with the days to keep", () => {
    expect(problems({ keep_days: "7" })).toEqual(['Give "Keep versions", too']);
    expect(isComplete(VACUUM, { keep_days: "7" })).toBe(false);
    expect(isComplete(VACUUM, { keep_days: "7", keep_versions: "100" })).toBe(true);
    expect(isComplete(VACUUM, {})).toBe(true);
  });
});

describe("a form", () => {
  it("needs a value of each required field", () => {
    const complete = ["", " ", "why"].map((reason) => isComplete(ABORT, { reason }));
    expect([isComplete(ABORT, {}), ...complete]).toEqual([false, false, false, true]);
    expect(isComplete(VACUUM, {})).toBe(true);
  });

  it("suggests what can be done with a version", () => {
    expect(suggested(undefined).action).toBe("verify");
    expect(suggested({ ...ROW, result: "open" })).toEqual({ action: "abort", values: {} });
    expect(suggested({ ...ROW, result: "publishing" }).action).toBe("skip");
    expect(suggested(ROW)).toEqual({ action: "reprocess", values: { versions: "7" } });
    expect(suggested({ ...ROW, replaced_by: 9 }).action).toBe("reprocess");
    expect(suggested({ ...ROW, kind: "reprocess", replaces: 2 }).action).toBe("verify");
    expect(suggested({ ...ROW, kind: "note", of_kind: { ...ROW.of_kind, has_rows: false } }).action).toBe("verify");
    expect(suggested({ ...ROW, is_rolled_back: true }).action).toBe("verify");
    expect(suggested({ ...ROW, kind: "reprocess", result: "held" }).action).toBe("abort");
  });
});
