/**
 * The requests to Airflow's public REST API with which the page performs actions.
 *
 * The page is served below Airflow's own path, so the user's session of Airflow authenticates them, and Airflow checks that the user may trigger the DAG.
 */
import { ApiError } from "./client";

/** The params of a DAG run; see `actions_dag` of the package. The others are those of the action. */
export type Params = { action: string; dry_run: boolean; log: string; [name: string]: unknown };

/** What an action did, or would do. `confirm` performs what a dry run describes; null if there is nothing to perform. */
export type ActionResult = { lines: string[]; confirm: Params | null; problem: string | null };

const TASK = "perform_action";
const KEY = "streamsem_action";
const INTERVAL_MS = 1_000;

const airflow = (path: string) => new URL(`../${path}`, window.location.href.split("#")[0]).href;
const runPath = (dag: string, run: string) => `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`;

async function request(path: string, init?: RequestInit): Promise<unknown> {
  const response = await fetch(airflow(`api/v2/${path}`), { credentials: "same-origin", ...init });
  const document = await response.json().catch(() => null);
  if (response.ok) return document;
  const detail = (document as { detail?: unknown } | null)?.detail;
  const text = detail === undefined ? `Airflow answered with status ${response.status}.` : message(detail);
  throw new ApiError(text, response.status);
}

/** The text of an error of Airflow: a text, or a list of what is not valid. */
function message(detail: unknown): string {
  return typeof detail === "string" ? detail : JSON.stringify(detail);
}

/** Start a run of a DAG that performs actions, and return its id. */
export async function start(dag: string, params: Params): Promise<string> {
  const run = (await request(`dags/${encodeURIComponent(dag)}/dagRuns`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ logical_date: null, conf: params }),
  })) as { dag_run_id: string };
  return run.dag_run_id;
}

/**
 * Wait for the end of a run, and return what its task describes.
 *
 * @param onState called with each state of the run
 * @param signal ends the wait, not the run
 */
export async function waitForRun(
  dag: string,
  run: string,
  onState: (state: string) => void,
  signal: AbortSignal,
): Promise<ActionResult> {
  for (;;) {
    const { state } = (await request(runPath(dag, run), { signal })) as { state: string };
    onState(state);
    if (state === "success" || state === "failed") break;
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
    signal.throwIfAborted();
  }
  try {
    const xcom = await request(`${runPath(dag, run)}/taskInstances/${TASK}/xcomEntries/${KEY}`, { signal });
    return actionResult((xcom as { value: unknown }).value);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    return { lines: [], confirm: null, problem: "The task has described nothing. Open its log in Airflow." };
  }
}

/** An XCom, which Airflow returns as JSON or as its text. */
function actionResult(value: unknown): ActionResult {
  return (typeof value === "string" ? JSON.parse(value) : value) as ActionResult;
}

/** The page of a run in Airflow. */
export function runUrl(dag: string, run: string): string {
  return airflow(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`);
}
