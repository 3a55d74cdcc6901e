import type { PipelineSummary, VersionRow } from "./api/client";
import { age } from "./text";

/** The state of a cell in the batch grid: of a version, or of one of its sinks. A committed version looks as the API says for its kind. */
export type CellState =
  | "committed"
  | "replaced"
  | "rolled_back"
  | "aborted"
  | "open"
  | "held"
  | "pending"
  | "skipped"
  | "unknown"
  | "none";

interface Look {
  label: string;
  /** A colour of Chakra. */
  color: string;
}

/** The look of each state, except of a committed version. */
export const LOOKS: Record<Exclude<CellState, "committed">, Look> = {
  replaced: { label: "replaced by a reprocessing run", color: "green.emphasized" },
  rolled_back: { label: "rolled back", color: "gray.emphasized" },
  aborted: { label: "aborted", color: "red.solid" },
  open: { label: "open", color: "yellow.solid" },
  held: { label: "held for review", color: "blue.emphasized" },
  pending: { label: "committed, not published yet", color: "orange.solid" },
  skipped: { label: "publishing was skipped", color: "pink.solid" },
  unknown: { label: "unknown whether all effects were performed", color: "teal.solid" },
  none: { label: "no output", color: "bg.muted" },
};

export function look(row: VersionRow, state: CellState): Look {
  return state === "committed" ? row.of_kind : LOOKS[state];
}

export function versionState(row: VersionRow): CellState {
  if (row.result === "open" || row.result === "held") return row.result;
  if (row.result === "abort") return "aborted";
  if (row.is_rolled_back) return "rolled_back";
  if (row.replaced_by !== null) return "replaced";
  return row.result === "publishing" ? "pending" : "committed";
}

/**
 * The text of the state of a version. Names the kind of a version without records also if it is open, aborted or rolled back, and says if the version has
 * expired.
 */
export function label(row: VersionRow): string {
  const state = versionState(row);
  const text = look(row, state).label;
  const named = row.of_kind.has_rows || state === "committed" ? text : `${text} (${row.kind})`;
  return row.is_expired ? `${named}, expired` : named;
}

export function sinkState(row: VersionRow, sink: string): CellState {
  if (sink in row.rewritten) return "committed";
  const state = row.sinks[sink];
  if (state === undefined) return "none";
  if (state === "waiting") return "pending";
  if (state === "skipped" || state === "unknown") return state;
  // Another sink may have the pending publish.
  const whole = versionState(row);
  return whole === "pending" ? "committed" : whole;
}

/** How long ago the newest closed version of a pipeline was closed. */
export function closed(pipeline: PipelineSummary): string {
  const at = pipeline.newest.find((row) => row.decided_at_ms !== null)?.decided_at_ms;
  return at ? `${age(pipeline.now_ms - at)} ago` : "";
}

/** The names of the counts of rules that rows of some version break, sorted. */
export function brokenRules(versions: VersionRow[]): string[] {
  const names = versions.flatMap((row) => Object.keys(row.counts).filter((name) => (row.counts[name] ?? 0) > 0));
  return [...new Set(names)].filter((name) => /^failed_(records|rows)\./.test(name)).sort();
}

/** The rows that a rewrite has stored in new files. */
export function rewritten(row: VersionRow): number {
  return Object.values(row.rewritten).reduce((sum, rows) => sum + rows, 0);
}

/** The rows that a version wrote, over all sinks. */
export function written(row: VersionRow): number {
  return Object.entries(row.counts).reduce(
    (sum, [name, value]) => (name.startsWith("written.") ? sum + value : sum),
    0,
  );
}

/** The seconds of each phase. "commit" is the rest of the time from plan to outcome: earlier attempts, and the commit itself. */
export function phases(row: VersionRow): { plan: number; stage: number; commit: number; publish: number } {
  const [plan, stage, publish] = [row.planning_ms, row.staged_ms ?? 0, row.publishing_ms ?? 0];
  const commit = Math.max(0, (row.duration_ms ?? 0) - plan - stage);
  return { plan: plan / 1000, stage: stage / 1000, commit: commit / 1000, publish: publish / 1000 };
}
