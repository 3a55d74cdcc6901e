import { Heading, Stack, Text } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Fetched } from "./Fetched";
import { PageLink } from "./PageLink";

/** A page below that of a pipeline: its title, the way back, and the content that `children` renders from the data. */
export function OfPipeline<T>({
  id,
  title,
  query,
  children,
}: {
  id: string;
  title: string;
  query: UseQueryResult<T>;
  children: (data: T) => ReactNode;
}) {
  return (
    <Stack gap="6">
      <Heading size="lg" as="h1">
        {title}
      </Heading>
      <Text>
        <PageLink to={`/pipelines/${id}`}>All versions of the pipeline</PageLink>
      </Text>
      <Fetched query={query}>{children}</Fetched>
    </Stack>
  );
}
