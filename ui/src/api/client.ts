import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type ActionForm = components["schemas"]["ActionForm"];
export type FormField = components["schemas"]["FormField"];
export type ActionsDag = components["schemas"]["ActionsDag"];
export type PipelineSummary = components["schemas"]["PipelineSummary"];
export type VersionRow = components["schemas"]["VersionRow"];
export type Rewrite = components["schemas"]["Rewrite"];
export type SinkState = components["schemas"]["SinkState"];
export type VersionDetail = components["schemas"]["VersionDetail"];
export type Comparison = components["schemas"]["Comparison"];
export type QuarantinedRecord = components["schemas"]["QuarantinedRecord"];

/** An error that the server reports, with the text that it gives and its HTTP status. */
export class ApiError extends Error {
  constructor(
    text: string,
    readonly status: number,
  ) {
    super(text);
  }
}

// The page has routes in the fragment of its URL, so the path is that of the page itself.
const client = createClient<paths>({ baseUrl: new URL(".", window.location.href).href.replace(/\/$/, "") });

async function unwrap<T>(request: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await request;
  if (data !== undefined) return data;
  const document = (error ?? {}) as { message?: string; detail?: string };
  const unknown = `The server answered with status ${response.status}.`;
  const text = document.message ?? (typeof document.detail === "string" ? document.detail : unknown);
  throw new ApiError(text, response.status);
}

const of = (id: string) => ({ params: { path: { id } } });

export const api = {
  settings: () => unwrap(client.GET("/api/settings")),
  pipelines: () => unwrap(client.GET("/api/pipelines")),
  pipeline: (id: string) => unwrap(client.GET("/api/pipelines/{id}", of(id))),
  versions: (id: string, before: number | undefined) =>
    unwrap(
      client.GET("/api/pipelines/{id}/versions", {
        params: { path: { id }, query: { before: before ?? null, limit: 100 } },
      }),
    ),
  version: (id: string, version: number) =>
    unwrap(client.GET("/api/pipelines/{id}/versions/{version}", { params: { path: { id, version } } })),
  quarantine: (id: string, version: number) =>
    unwrap(client.GET("/api/pipelines/{id}/versions/{version}/quarantine", { params: { path: { id, version } } })),
  comparison: (id: string, older: number, newer: number) =>
    unwrap(client.GET("/api/pipelines/{id}/comparison", { params: { path: { id }, query: { older, newer } } })),
};
