import { Heading, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useParams } from "react-router-dom";
import { api, type PipelineSummary } from "../api/client";
import { Fetched } from "../parts/Fetched";
import { PageLink } from "../parts/PageLink";
import { Rows } from "../parts/Rows";
import { closed, label } from "../state";
import { count, guarantee } from "../text";

/** The pipelines that the user may read. Below the route of a DAG: those that its tasks run. */
export function Pipelines() {
  const { dag } = useParams();
  const query = useQuery({ queryKey: ["pipelines"], queryFn: api.pipelines });
  return (
    <Stack gap="4">
      <Heading size="lg" as="h1">
        Pipelines
      </Heading>
      <Fetched query={query}>
        {(all) => {
          const pipelines = all.filter((each) => dag === undefined || each.tasks.some((task) => task.dag_id === dag));
          return pipelines.length === 0 ? (
            <Text>
              {dag === undefined
                ? "There are no pipelines. A pipeline appears after the first run of its task, if you may read the DAG."
                : "No task of this DAG has run a pipeline yet."}
            </Text>
          ) : (
            <Rows
              caption="pipelines"
              columns={["Pipeline", "Guarantee", "Newest version", "State", "Closed", "Rows per minute"]}
              rows={pipelines.map((pipeline) => ({ id: pipeline.id, cells: cells(pipeline) }))}
            />
          );
        }}
      </Fetched>
    </Stack>
  );
}

function cells(pipeline: PipelineSummary) {
  const newest = pipeline.newest[0];
  const name = (
    <PageLink key="name" to={`/pipelines/${pipeline.id}`}>
      {pipeline.name}
    </PageLink>
  );
  if (pipeline.problem) return [name, "", "", pipeline.problem.message, "", ""];
  return [
    name,
    guarantee(pipeline.guarantee, pipeline.conditions),
    newest === undefined ? "none" : newest.version,
    newest === undefined ? "no run yet" : label(newest),
    closed(pipeline),
    count(pipeline.rows_per_minute),
  ];
}
