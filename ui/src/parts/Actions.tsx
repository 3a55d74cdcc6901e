import {
  Button,
  Checkbox,
  CloseButton,
  Code,
  Dialog,
  Field,
  Input,
  Link,
  NativeSelect,
  Portal,
  Stack,
  Text,
} from "@chakra-ui/react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { isComplete, params, problem, suggested, type Values } from "../actions";
import { type ActionResult, type Params, runUrl, start, waitForRun } from "../api/airflow";
import { type ActionForm, type ActionsDag, api, type PipelineSummary, type VersionRow } from "../api/client";
import { title } from "../text";
import { Problem } from "./Fetched";

type Run = { id: string; state: string };

/**
 * A button that opens the form of an action, which a run of a DAG performs. A user who may not trigger the DAG sees its id, and without such a DAG there is
 * nothing.
 */
export function Actions({ pipeline, row }: { pipeline: PipelineSummary; row?: VersionRow }) {
  const runnable = pipeline.actions.filter((each) => each.may_run);
  const [first] = pipeline.actions;
  const settings = useQuery({ queryKey: ["settings"], queryFn: api.settings, refetchInterval: false });
  if (first === undefined || settings.data === undefined) return null;
  if (runnable.length === 0) {
    return <Text color="fg.muted">To act on this pipeline, you need the right to trigger the DAG {first.dag_id}.</Text>;
  }
  return (
    <Dialog.Root lazyMount unmountOnExit size="lg" scrollBehavior="inside">
      <Dialog.Trigger asChild>
        <Button size="sm" variant="outline" alignSelf="flex-start">
          Actions
        </Button>
      </Dialog.Trigger>
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
            <Dialog.Header>
              <Dialog.Title>Act on {pipeline.name}</Dialog.Title>
            </Dialog.Header>
            <Form forms={settings.data.actions} dags={runnable} log={pipeline.log} row={row} />
            <Dialog.CloseTrigger asChild>
              <CloseButton size="sm" />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}

function Form({ forms, dags, log, row }: { forms: ActionForm[]; dags: ActionsDag[]; log: string; row?: VersionRow }) {
  const initial = suggested(row);
  const [dag, setDag] = useState(dags[0]?.dag_id ?? "");
  const isPaused = dags.some((each) => each.dag_id === dag && each.is_paused);
  const [action, setAction] = useState(initial.action);
  const form = forms.find((each) => each.name === action);
  const [values, setValues] = useState<Values>(initial.values);
  const [run, setRun] = useState<Run | null>(null);
  const closing = useRef(new AbortController());
  useEffect(() => {
    const controller = new AbortController();
    closing.current = controller;
    return () => controller.abort();
  }, []);
  const queries = useQueryClient();
  const task = useMutation({
    mutationFn: async (given: Params): Promise<ActionResult> => {
      setRun(null);
      const id = await start(dag, given);
      setRun({ id, state: "queued" });
      const found = await waitForRun(dag, id, (state) => setRun({ id, state }), closing.current.signal);
      if (!given.dry_run) await queries.invalidateQueries();
      return found;
    },
  });
  const change = (changed: Values) => {
    setValues({ ...values, ...changed });
    task.reset();
  };
  const confirm = task.data?.confirm ?? null;
  if (form === undefined) return null;
  return (
    <>
      <Dialog.Body>
        <Stack gap="4">
          {/* Two pipelines may have one name. The task refuses a pipeline with another log. */}
          {dags.length < 2 ? (
            <Text>A run of the DAG {dag} performs the action.</Text>
          ) : (
            <Choice
              label="DAG"
              value={dag}
              options={dags.map(({ dag_id }) => [dag_id, dag_id])}
              disabled={task.isPending}
              onChange={(chosen) => {
                setDag(chosen);
                task.reset();
              }}
            />
          )}
          {isPaused ? <Text>The DAG {dag} is paused, so its runs wait until a user unpauses it.</Text> : null}
          <Choice
            label="Action"
            value={action}
            options={forms.map(({ name }) => [name, title(name)])}
            help={form.help}
            disabled={task.isPending}
            onChange={(chosen) => {
              setAction(chosen);
              task.reset();
            }}
          />
          {form.fields.map((field) =>
            field.type === "boolean" ? (
              <Checkbox.Root
                key={field.name}
                disabled={task.isPending}
                checked={values[field.name] !== undefined && values[field.name] !== ""}
                onCheckedChange={({ checked }) => change({ [field.name]: checked === true ? "on" : "" })}
              >
                <Checkbox.HiddenInput />
                <Checkbox.Control />
                <Checkbox.Label>
                  {title(field.name)}. {field.help}
                </Checkbox.Label>
              </Checkbox.Root>
            ) : (
              <Field.Root
                key={field.name}
                required={field.required}
                disabled={task.isPending}
                invalid={problem(field, values) !== ""}
              >
                <Field.Label>
                  {title(field.name)} <Field.RequiredIndicator />
                </Field.Label>
                <Input
                  value={values[field.name] ?? ""}
                  inputMode={field.type === "integer" ? "numeric" : "text"}
                  onChange={(event) => change({ [field.name]: event.target.value })}
                />
                <Field.HelperText>{field.help}</Field.HelperText>
                <Field.ErrorText>{problem(field, values)}</Field.ErrorText>
              </Field.Root>
            ),
          )}
          <Result dag={dag} run={run} isPending={task.isPending} found={task.data} error={task.error} />
        </Stack>
      </Dialog.Body>
      <Dialog.Footer>
        <Button
          variant="outline"
          disabled={!isComplete(form, values)}
          loading={task.isPending && task.variables?.dry_run === true}
          onClick={() => task.mutate(params(form, values, log))}
        >
          {form.only_reads ? title(action) : "Preview"}
        </Button>
        {form.only_reads ? null : (
          <Button
            colorPalette="red"
            disabled={confirm === null}
            loading={task.isPending && task.variables?.dry_run === false}
            onClick={() => confirm !== null && task.mutate(confirm)}
          >
            Confirm
          </Button>
        )}
      </Dialog.Footer>
    </>
  );
}

/** A list from which one value is chosen. `options` are pairs of value and text. */
function Choice({
  label,
  value,
  options,
  help,
  disabled,
  onChange,
}: {
  label: string;
  value: string;
  options: [string, string][];
  help?: string;
  disabled: boolean;
  onChange: (chosen: string) => void;
}) {
  return (
    <Field.Root>
      <Field.Label>{label}</Field.Label>
      <NativeSelect.Root disabled={disabled}>
        <NativeSelect.Field value={value} onChange={(event) => onChange(event.target.value)}>
          {options.map(([name, text]) => (
            <option key={name} value={name}>
              {text}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
      {help === undefined ? null : <Field.HelperText>{help}</Field.HelperText>}
    </Field.Root>
  );
}

/** The run of the DAG, and what its task describes. */
function Result({
  dag,
  run,
  isPending,
  found,
  error,
}: {
  dag: string;
  run: Run | null;
  isPending: boolean;
  found: ActionResult | undefined;
  error: Error | null;
}) {
  const shown = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (found !== undefined || error !== null) shown.current?.scrollIntoView({ block: "end" });
  }, [found, error]);
  return (
    <Stack ref={shown} gap="2" aria-live="polite" aria-busy={isPending}>
      {run === null ? null : (
        <Text fontSize="sm" color="fg.muted">
          Run <RunLink dag={dag} run={run.id} /> of DAG {dag}: {run.state}
        </Text>
      )}
      {error === null ? null : <Problem title="The action could not be started or followed" message={error.message} />}
      {found === undefined ? null : (
        <>
          {found.problem === null ? null : <Problem title="The task failed" message={found.problem} />}
          {found.lines.length === 0 ? null : (
            <Code display="block" whiteSpace="pre-wrap" overflowWrap="anywhere" p="3">
              {found.lines.join("\n")}
            </Code>
          )}
        </>
      )}
    </Stack>
  );
}

/** A link to a run in Airflow. Inside of Airflow's frame a link cannot open a page of Airflow, so there it is text. */
function RunLink({ dag, run }: { dag: string; run: string }) {
  if (window.top !== window.self) return <Code>{run}</Code>;
  return (
    <Link href={runUrl(dag, run)} variant="underline" colorPalette="blue">
      {run}
    </Link>
  );
}
