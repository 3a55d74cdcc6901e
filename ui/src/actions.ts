/** The forms of the actions, and the params that they describe. */
import type { Params } from "./api/airflow";
import type { VersionRow } from "./api/client";
import { versionState } from "./state";

export type Action = "verify" | "reprocess" | "abort" | "skip" | "vacuum" | "alter";

/** A field of a form. The value of an integer is at least `least` and at most `most`. */
type Field = {
  name: FieldName;
  label: string;
  help: string;
  kind: "text" | "list" | "switch" | "integer";
  required?: boolean;
  least?: number;
  most?: number;
};
type FieldName =
  | "versions"
  | "since"
  | "until"
  | "offsets"
  | "sinks"
  | "reason"
  | "all_versions"
  | "keep_versions"
  | "keep_days"
  | "log_only"
  | "moved";

/** The values of a form. A switch that is on has a value. */
export type Values = Partial<Record<FieldName, string>>;

const REASON: Field = {
  name: "reason",
  label: "Reason",
  help: "Stored in the commit log.",
  kind: "text",
  required: true,
};

/** Action → what it does, and its fields. */
export const ACTIONS: Record<Action, { label: string; effect: string; fields: Field[] }> = {
  verify: {
    label: "Verify",
    effect: "Checks the log and each visible file. Changes nothing.",
    fields: [{ name: "log_only", label: "Only the log, and no data file", help: "", kind: "switch" }],
  },
  reprocess: {
    label: "Reprocess",
    effect: "Reads the offset ranges of committed versions again with the current transform, and replaces their rows.",
    fields: [
      { name: "versions", label: "Versions", help: "Such as 3-7, 9", kind: "text" },
      { name: "since", label: "Committed at or after", help: "Such as 2026-01-31T12:00:00Z", kind: "text" },
      { name: "until", label: "Committed at or before", help: "Such as 2026-01-31T13:00:00Z", kind: "text" },
      { name: "offsets", label: "Offsets", help: "Such as orders/0=100:200, separated by commas", kind: "list" },
    ],
  },
  abort: {
    label: "Abort the open version",
    effect:
      "Closes the open version without rows. If it is a batch, the next run reads its records. If it is a reprocessing run, the rows that it would replace stay.",
    fields: [REASON],
  },
  skip: {
    label: "Skip a pending publish",
    effect:
      "Skips publishing the newest version to the named sinks, and publishes it to the others. The skipped sinks do not get the rows that they have not received yet.",
    fields: [
      { name: "sinks", label: "Sinks", help: "Separated by commas. Empty: all with a pending publish", kind: "list" },
      REASON,
    ],
  },
  vacuum: {
    label: "Vacuum",
    effect:
      "Deletes files that no reader and no run needs. With versions to keep, older versions expire, and their files are deleted too. Expired versions cannot be read or rolled back to, and some cannot be reprocessed. This cannot be undone.",
    fields: [
      {
        name: "keep_versions",
        label: "Versions to keep",
        help: "The number of the newest versions to keep, such as 100. Older versions expire, which cannot be undone. Empty: no version expires",
        kind: "integer",
        least: 1,
      },
      {
        name: "keep_days",
        label: "Days to keep",
        help: "Only with versions to keep: versions that were the newest one at some time in these last days are kept, too. Must be longer than the longest reader, export, and delay of a pipeline that reads this one. Empty: 7",
        kind: "integer",
        least: 0,
        most: 36_500,
      },
      {
        name: "all_versions",
        label: "Also inspect versions that an earlier vacuum inspected",
        help: "",
        kind: "switch",
      },
    ],
  },
  alter: {
    label: "Alter",
    effect:
      "Records the sinks, the source, the deduplication and the state of the pipeline in the DAG as the new ones in the commit log.",
    fields: [
      {
        name: "moved",
        label: "Moved sinks",
        help: "Files sinks whose files were copied to the new path, separated by commas",
        kind: "list",
      },
    ],
  },
};

/** The action that a version suggests, and the values of its form. */
export function suggested(row: VersionRow | undefined): { action: Action; values: Values } {
  if (row === undefined) return { action: "verify", values: {} };
  const state = versionState(row);
  if (state === "open" || state === "held") return { action: "abort", values: {} };
  if (state === "pending") return { action: "skip", values: {} };
  const isVisibleBatch = row.kind === "batch" && (state === "committed" || state === "replaced");
  return isVisibleBatch
    ? { action: "reprocess", values: { versions: String(row.version) } }
    : { action: "verify", values: {} };
}

/** The fields of an action that need a value and have none. */
export function missing(action: Action, values: Values): string[] {
  return ACTIONS[action].fields
    .filter((field) => field.required && (values[field.name] ?? "").trim() === "")
    .map((field) => field.label);
}

/** Why the value of a field is not valid; "" if it is valid or empty. */
export function problem(field: Field, values: Values): string {
  const value = (values[field.name] ?? "").trim();
  if (field.kind !== "integer" || value === "") return "";
  const { least = 0, most = Number.MAX_SAFE_INTEGER } = field;
  if (!/^[0-9]+$/.test(value) || Number(value) < least || Number(value) > most) {
    return field.most === undefined ? `An integer, ${least} or more` : `An integer from ${least} to ${most}`;
  }
  const isAlone = field.name === "keep_days" && (values.keep_versions ?? "").trim() === "";
  return isAlone ? "Give the versions to keep, too" : "";
}

/** Whether the form of an action can be sent: each required field has a value, and each value is valid. */
export function isComplete(action: Action, values: Values): boolean {
  return missing(action, values).length === 0 && ACTIONS[action].fields.every((field) => problem(field, values) === "");
}

/** The params of the dry run that a form describes. */
export function params(action: Action, values: Values, log: string): Params {
  const found: Record<string, unknown> = { action, dry_run: true, log };
  for (const { name, kind } of ACTIONS[action].fields) {
    const value = (values[name] ?? "").trim();
    if (value === "") continue;
    if (kind === "switch") found[name] = true;
    else if (kind === "list") found[name] = items(value);
    else if (kind === "integer") found[name] = Number(value);
    else found[name] = value;
  }
  return found as Params;
}

function items(text: string): string[] {
  return text
    .split(",")
    .map((item) => item.trim())
    .filter((item) => item !== "");
}
