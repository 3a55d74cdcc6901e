import { Stack } from "@chakra-ui/react";
import type { VersionRow } from "../api/client";
import { label, rewritten, written } from "../state";
import { count, duration, size, utc } from "../text";
import { PageLink, VersionLink } from "./PageLink";
import { Rows } from "./Rows";

const COLUMNS = [
  "Version",
  "State",
  "Closed (UTC)",
  "Read",
  "Written",
  "Quarantined",
  "Files",
  "Duration",
  "Changed",
  "Compare",
];

export function VersionTable({ id, versions }: { id: string; versions: VersionRow[] }) {
  return (
    <Rows
      caption="versions"
      columns={COLUMNS}
      rows={versions.map((row) => ({ id: String(row.version), cells: cells(id, row) }))}
    />
  );
}

function cells(id: string, row: VersionRow) {
  const earlier = row.version - 1;
  return [
    <VersionLink key="version" id={id} version={row.version}>
      {row.version}
    </VersionLink>,
    <Stack key="state" gap="0">
      {label(row)}
      {[row.of_kind.label, row.kind].includes(row.description) ? null : <span>{row.description}</span>}
      {rewritten(row) === 0 ? null : <span>{count(rewritten(row))} rows in new files</span>}
      {row.reason === "" ? null : <span>{row.reason}</span>}
    </Stack>,
    utc(row.decided_at_ms),
    count(row.counts.read),
    row.of_kind.has_rows ? count(written(row)) : "",
    count(row.counts.quarantined),
    row.files === 0 ? "" : `${row.files}, ${size(row.bytes)}`,
    duration(row.duration_ms),
    row.changed.join(", "),
    earlier < 0 || row.decided_at_ms === null ? (
      ""
    ) : (
      <PageLink key="compare" to={`/pipelines/${id}/compare?older=${earlier}&newer=${row.version}`}>
        with {earlier}
      </PageLink>
    ),
  ];
}
