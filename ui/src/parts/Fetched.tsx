import { Alert, Skeleton, Stack } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";

/** The result of a request: placeholders while it runs, its error, and the content that `children` renders from its data. */
export function Fetched<T>({ query, children }: { query: UseQueryResult<T>; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) {
    const at = new Date(query.dataUpdatedAt).toLocaleTimeString();
    return (
      <>
        {query.error === null ? null : (
          <Problem title={`The refresh failed. The page shows the data of ${at}`} message={query.error.message} />
        )}
        {children(query.data)}
      </>
    );
  }
  if (query.error !== null) return <Problem title="The data cannot be shown" message={query.error.message} />;
  return (
    <Stack aria-busy="true" aria-label="loading" gap="3">
      <Skeleton height="6" />
      <Skeleton height="6" />
      <Skeleton height="6" />
    </Stack>
  );
}

export function Problem({ title, message }: { title: string; message: string }) {
  return (
    <Alert.Root status="error">
      <Alert.Indicator />
      <Alert.Content>
        <Alert.Title>{title}</Alert.Title>
        <Alert.Description overflowWrap="anywhere">{message}</Alert.Description>
      </Alert.Content>
    </Alert.Root>
  );
}
