import type { VersionRow } from "./api/client";

/** What the batch grid shows of a version or of one of its sinks. */
export type CellState =
  | "committed"
  | "reprocessed"
  | "rollback"
  | "replaced"
  | "aborted"
  | "open"
  | "pending"
  | "skipped"
  | "unknown"
  | "none";

export const LABELS: Record<CellState, string> = {
  committed: "committed",
  reprocessed: "reprocessed: replaces an earlier version",
  rollback: "rollback to an earlier version",
  replaced: "rolled back",
  aborted: "aborted",
  open: "open: planned, not committed yet",
  pending: "committed, publishing is pending",
  skipped: "skipped",
  unknown: "unknown whether all effects were performed",
  none: "no output",
};

/** Chakra colour of each state. */
export const COLORS: Record<CellState, string> = {
  committed: "green.solid",
  reprocessed: "blue.solid",
  rollback: "purple.solid",
  replaced: "gray.emphasized",
  aborted: "red.solid",
  open: "yellow.solid",
  pending: "orange.solid",
  skipped: "pink.solid",
  unknown: "red.solid",
  none: "bg.muted",
};

export function versionState(row: VersionRow): CellState {
  if (row.is_rolled_back) return "replaced";
  if (row.result === "open") return "open";
  if (row.result === "abort") return "aborted";
  if (row.result === "publishing") return "pending";
  if (row.kind === "rollback") return "rollback";
  return row.kind === "reprocess" ? "reprocessed" : "committed";
}

export function sinkState(row: VersionRow, sink: string): CellState {
  const state = row.sinks[sink];
  if (state === undefined) return "none";
  if (state === "waiting") return "pending";
  if (state === "skipped" || state === "unknown") return state;
  // The version may wait for another sink.
  const whole = versionState(row);
  return whole === "pending" ? "committed" : whole;
}

/** The rows that a version wrote, over all sinks. */
export function written(row: VersionRow): number {
  return Object.entries(row.counts).reduce(
    (sum, [name, value]) => (name.startsWith("written.") ? sum + value : sum),
    0,
  );
}
