import { Stack } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useParams, useSearchParams } from "react-router-dom";
import { api, type Comparison, type VersionRow } from "../api/client";
import { Facts } from "../parts/Facts";
import { OfPipeline } from "../parts/OfPipeline";
import { Rows } from "../parts/Rows";
import { label } from "../state";
import { count, duration, utc } from "../text";

export function Compare() {
  const { id = "" } = useParams();
  const [search] = useSearchParams();
  const older = Number(search.get("older"));
  const newer = Number(search.get("newer"));
  const query = useQuery({
    queryKey: ["comparison", id, older, newer],
    queryFn: () => api.comparison(id, older, newer),
    refetchInterval: false,
  });
  return (
    <OfPipeline id={id} title={`Versions ${older} and ${newer}`} query={query}>
      {(found) => <Differences found={found} />}
    </OfPipeline>
  );
}

function Differences({ found }: { found: Comparison }) {
  const { older, newer } = found;
  const fields: [string, (row: VersionRow) => string][] = [
    ["state", label],
    ["closed (UTC)", (row) => utc(row.decided_at_ms)],
    ["duration", (row) => duration(row.duration_ms)],
    ["files", (row) => count(row.files)],
    ["partitions", (row) => count(row.partitions)],
  ];
  const names = [...new Set([...Object.keys(older.counts), ...Object.keys(newer.counts)])].sort();
  const counts = names.map((name): [string, (row: VersionRow) => string] => [name, (row) => count(row.counts[name])]);
  return (
    <Stack gap="6">
      <Facts
        facts={[
          ["Files that became visible", `${count(found.added_files)}, with ${count(found.added_rows)} rows`],
          ["Files that were removed", `${count(found.removed_files)}, with ${count(found.removed_rows)} rows`],
          ["Changed in the spec", found.changed.length === 0 ? "nothing" : found.changed.join(", ")],
        ]}
      />
      <Rows
        caption="comparison"
        columns={["Field", `version ${older.version}`, `version ${newer.version}`]}
        rows={[...fields, ...counts].map(([name, value]) => ({ id: name, cells: [name, value(older), value(newer)] }))}
      />
    </Stack>
  );
}
