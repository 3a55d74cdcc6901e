import { Box, Button, Heading, Stack, Tabs, Text } from "@chakra-ui/react";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useParams } from "react-router-dom";
import { api, type PipelineSummary, type VersionRow } from "../api/client";
import { Actions } from "../parts/Actions";
import { Facts } from "../parts/Facts";
import { Fetched, Problem } from "../parts/Fetched";
import { Flow } from "../parts/Flow";
import { Grid, Legend } from "../parts/Grid";
import { Timeline } from "../parts/Timeline";
import { VersionTable } from "../parts/VersionTable";
import { closed, label } from "../state";
import { count, guarantee } from "../text";

export function Pipeline() {
  const { id = "" } = useParams();
  const summary = useQuery({ queryKey: ["pipeline", id], queryFn: () => api.pipeline(id) });
  const pages = useInfiniteQuery({
    queryKey: ["versions", id],
    queryFn: ({ pageParam }) => api.versions(id, pageParam),
    initialPageParam: undefined as number | undefined,
    getNextPageParam: (page) => page.before ?? undefined,
  });
  const versions: VersionRow[] = pages.data?.pages.flatMap((page) => page.versions) ?? [];
  const flow = versions.find((row) => row.of_kind.uses_spec) ?? versions[0];
  return (
    <Fetched query={summary}>
      {(pipeline) => (
        <Stack gap="6">
          <Heading size="lg" as="h1">
            {pipeline.name}
          </Heading>
          <Facts facts={facts(pipeline)} />
          <Actions pipeline={pipeline} />
          {pages.error === null ? null : <Problem title="The versions cannot be shown" message={pages.error.message} />}
          <Tabs.Root defaultValue="grid" lazyMount>
            <Tabs.List>
              <Tabs.Trigger value="grid">Batch grid</Tabs.Trigger>
              <Tabs.Trigger value="timeline">Timeline</Tabs.Trigger>
              <Tabs.Trigger value="versions">Versions</Tabs.Trigger>
              <Tabs.Trigger value="flow">Data flow</Tabs.Trigger>
            </Tabs.List>
            <Tabs.Content value="grid">
              <Stack gap="4">
                <Grid id={id} versions={versions} />
                <Legend versions={versions} />
              </Stack>
            </Tabs.Content>
            <Tabs.Content value="timeline">
              <Timeline versions={versions} />
            </Tabs.Content>
            <Tabs.Content value="versions">
              <VersionTable id={id} versions={versions} />
            </Tabs.Content>
            <Tabs.Content value="flow">
              {flow === undefined ? <Text>There are no versions yet.</Text> : <Flow id={id} version={flow.version} />}
            </Tabs.Content>
          </Tabs.Root>
          {pages.hasNextPage ? (
            <Box>
              <Button
                size="sm"
                variant="outline"
                loading={pages.isFetchingNextPage}
                onClick={() => pages.fetchNextPage()}
              >
                Show earlier versions
              </Button>
            </Box>
          ) : null}
        </Stack>
      )}
    </Fetched>
  );
}

function facts(pipeline: PipelineSummary): [string, string | number | null][] {
  const newest = pipeline.newest[0];
  const aborted = pipeline.newest.find((row) => row.reason !== "");
  return [
    ["Guarantee", guarantee(pipeline.guarantee, pipeline.conditions)],
    ["Newest version", newest === undefined ? "none" : `${newest.version}: ${label(newest)}`],
    ["Closed", closed(pipeline)],
    ["Oldest readable version", pipeline.oldest_readable],
    ["Rows per minute", count(pipeline.rows_per_minute)],
    ["Last abort", aborted === undefined ? "" : `version ${aborted.version}: ${aborted.reason}`],
    ["Tasks", pipeline.tasks.map((task) => `${task.dag_id}.${task.task_id}`).join(", ")],
    ["Log", pipeline.log],
  ];
}
