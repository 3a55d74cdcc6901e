/** The params that the form of an action describes. */
import type { Params } from "./api/airflow";
import type { ActionForm, FormField, VersionRow } from "./api/client";
import { versionState } from "./state";
import { title } from "./text";

/** The values of a form. A switch that is on has a value. */
export type Values = Record<string, string>;

/** The action that a version suggests, and the values of its form. */
export function suggested(row: VersionRow | undefined): { action: string; values: Values } {
  if (row === undefined) return { action: "verify", values: {} };
  const state = versionState(row);
  if (state === "open" || state === "held") return { action: "abort", values: {} };
  if (state === "pending") return { action: "skip", values: {} };
  const isVisibleBatch =
    row.of_kind.has_rows && row.replaces === null && (state === "committed" || state === "replaced");
  return isVisibleBatch
    ? { action: "reprocess", values: { versions: String(row.version) } }
    : { action: "verify", values: {} };
}

/** Why the value of a field is not valid; "" if it is valid or empty. */
export function problem(field: FormField, values: Values): string {
  const value = given(field.name, values);
  if (value === "") return "";
  const [least, most] = [field.minimum ?? 0, field.maximum ?? Number.MAX_SAFE_INTEGER];
  if (field.type === "integer" && (!/^[0-9]+$/.test(value) || Number(value) < least || Number(value) > most)) {
    return field.maximum === null ? `An integer, ${least} or more` : `An integer from ${least} to ${most}`;
  }
  const isAlone = field.needs !== "" && given(field.needs, values) === "";
  return isAlone ? `Give "${title(field.needs)}", too` : "";
}

/** Whether the form of an action can be sent: each required field has a value, and each value is valid. */
export function isComplete(form: ActionForm, values: Values): boolean {
  return form.fields.every(
    (field) => !(field.required && given(field.name, values) === "") && problem(field, values) === "",
  );
}

/** The params of the dry run that a form describes. */
export function params(form: ActionForm, values: Values, log: string): Params {
  const found: Params = { action: form.name, dry_run: true, log };
  for (const { name, type } of form.fields) {
    const value = given(name, values);
    if (value === "") continue;
    if (type === "boolean") found[name] = true;
    else if (type === "array") found[name] = items(value);
    else found[name] = type === "integer" ? Number(value) : value;
  }
  return found;
}

function given(name: string, values: Values): string {
  return (values[name] ?? "").trim();
}

function items(text: string): string[] {
  return text
    .split(",")
    .map((item) => item.trim())
    .filter((item) => item !== "");
}
