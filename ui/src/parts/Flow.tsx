import { Box, Flex, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { api, type SinkState, type VersionDetail } from "../api/client";
import { count } from "../text";
import { Fetched } from "./Fetched";

/** Source → transform → sinks, with the counts of one version. */
export function Flow({ id, version }: { id: string; version: number }) {
  const query = useQuery({ queryKey: ["version", id, version], queryFn: () => api.version(id, version) });
  return <Fetched query={query}>{(detail) => <Boxes detail={detail} />}</Fetched>;
}

function Boxes({ detail }: { detail: VersionDetail }) {
  const { counts } = detail.row;
  const sources = sourcesOf(detail.settings);
  const sinks = (detail.settings.sinks ?? {}) as Record<string, unknown>;
  return (
    <Stack gap="3">
      <Text fontSize="sm" color="fg.muted">
        The counts are those of version {detail.row.version}.
      </Text>
      <Flex gap="4" align="center" wrap="wrap">
        <Stack>
          {sources.map(([name, type]) => (
            <Card
              key={name}
              title={name === "" ? "source" : `source ${name}`}
              lines={[type, `${count(counts[name === "" ? "read" : `read.${name}`] ?? 0)} records read`]}
            />
          ))}
        </Stack>
        <Arrow />
        <Card
          title="transform"
          lines={[
            detail.transform || "none",
            ...(counts.filtered ? [`${count(counts.filtered)} filtered`] : []),
            ...(counts.quarantined ? [`${count(counts.quarantined)} quarantined`] : []),
            ...(counts.late ? [`${count(counts.late)} late`] : []),
            ...detail.state.map((state) => `${state.operator}: ${count(state.rows)} rows of state`),
            ...Object.keys(detail.lookups).map((lookup) => `lookup ${lookup}`),
          ]}
        />
        <Arrow />
        <Stack>
          {Object.entries(sinks).map(([name, spec]) => (
            <Card
              key={name}
              title={`sink ${name}`}
              lines={[
                typeOf(spec),
                rowsOf(detail.sinks.find((sink) => sink.sink === name)),
                (detail.guarantee[name] ?? "").replaceAll("_", "-"),
              ]}
            />
          ))}
        </Stack>
      </Flex>
    </Stack>
  );
}

function Card({ title, lines }: { title: string; lines: string[] }) {
  return (
    <Box borderWidth="1px" rounded="md" p="3" minW="48" maxW="80">
      <Text fontWeight="semibold">{title}</Text>
      {lines
        .filter((line) => line !== "")
        .map((line) => (
          <Text key={line} fontSize="sm" overflowWrap="anywhere">
            {line}
          </Text>
        ))}
    </Box>
  );
}

function Arrow() {
  return (
    <Text fontSize="xl" aria-hidden="true">
      →
    </Text>
  );
}

function typeOf(spec: unknown): string {
  const type = (spec as { type?: unknown } | null | undefined)?.type;
  return typeof type === "string" ? type : "";
}

/** The rows and the state of a sink. An open version, an abort and an alter have written none. */
function rowsOf(sink: SinkState | undefined): string {
  return sink === undefined ? "0 rows" : `${count(sink.rows ?? 0)} rows, ${sink.state}`;
}

/** Name → type of the sources of a spec. The only source has the name "". */
function sourcesOf(settings: Record<string, unknown>): [string, string][] {
  const several = settings.sources as Record<string, unknown> | undefined;
  if (several !== undefined) return Object.entries(several).map(([name, spec]) => [name, typeOf(spec)]);
  return [["", typeOf(settings.source)]];
}
