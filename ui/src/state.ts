import type { PipelineSummary, VersionRow } from "./api/client";
import { age } from "./text";

/** The state of a cell in the batch grid: of a version, or of one of its sinks. */
export type CellState =
  | "committed"
  | "reprocessing"
  | "rollback"
  | "alter"
  | "rewrite"
  | "expire"
  | "replaced"
  | "rolled_back"
  | "aborted"
  | "open"
  | "held"
  | "pending"
  | "skipped"
  | "unknown"
  | "none";

export const LABELS: Record<CellState, string> = {
  committed: "committed",
  reprocessing: "reprocessing run",
  rollback: "rollback",
  alter: "alter",
  rewrite: "rewrite (compaction)",
  expire: "expiry (vacuum)",
  replaced: "replaced by a reprocessing run",
  rolled_back: "rolled back",
  aborted: "aborted",
  open: "open",
  held: "held for review",
  pending: "committed, not published yet",
  skipped: "publishing was skipped",
  unknown: "unknown whether all effects were performed",
  none: "no output",
};

/** Chakra colour of each state. */
export const COLORS: Record<CellState, string> = {
  committed: "green.solid",
  reprocessing: "blue.solid",
  rollback: "purple.solid",
  alter: "cyan.solid",
  rewrite: "cyan.emphasized",
  expire: "gray.solid",
  replaced: "green.emphasized",
  rolled_back: "gray.emphasized",
  aborted: "red.solid",
  open: "yellow.solid",
  held: "blue.emphasized",
  pending: "orange.solid",
  skipped: "pink.solid",
  unknown: "teal.solid",
  none: "bg.muted",
};

export function versionState(row: VersionRow): CellState {
  if (row.result === "open" || row.result === "held") return row.result;
  if (row.result === "abort") return "aborted";
  if (row.is_rolled_back) return "rolled_back";
  if (row.replaced_by !== null) return "replaced";
  if (row.result === "publishing") return "pending";
  if (row.kind === "rollback") return "rollback";
  if (row.kind === "alter" || row.kind === "rewrite" || row.kind === "expire") return row.kind;
  return row.kind === "reprocess" ? "reprocessing" : "committed";
}

/**
 * The text of the state of a version. Names the kind of a version without records also if it is open, aborted or rolled back, and says if the version has
 * expired.
 */
export function label(row: VersionRow): string {
  const state = versionState(row);
  const text = hasRecords(row) || state === row.kind ? LABELS[state] : `${LABELS[state]} (${row.kind})`;
  return row.is_expired ? `${text}, expired` : text;
}

/** Whether a version is a batch or a reprocessing run. All others read no records and run no transform. */
export function hasRecords(row: VersionRow): boolean {
  return row.kind === "batch" || row.kind === "reprocess";
}

/** Whether the state, the offsets and the watermark after a version are those before it, so that the version does not show them. */
export function keepsState(row: VersionRow): boolean {
  return row.kind === "rewrite" || row.kind === "expire";
}

export function sinkState(row: VersionRow, sink: string): CellState {
  if (sink in row.rewritten) return "rewrite";
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
