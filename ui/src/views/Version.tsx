import { Box, Button, Code, Heading, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useParams } from "react-router-dom";
import { api, type VersionDetail } from "../api/client";
import { Actions } from "../parts/Actions";
import { Facts } from "../parts/Facts";
import { Fetched } from "../parts/Fetched";
import { OfPipeline } from "../parts/OfPipeline";
import { VersionLink } from "../parts/PageLink";
import { RewriteFacts } from "../parts/RewriteFacts";
import { Rows } from "../parts/Rows";
import { label } from "../state";
import { count, duration, guarantee, size, utc } from "../text";

export function Version() {
  const { id = "", version = "" } = useParams();
  const query = useQuery({
    queryKey: ["version", id, Number(version)],
    queryFn: () => api.version(id, Number(version)),
    refetchInterval: (running) => (isFinal(running.state.data) ? false : 10_000),
  });
  return (
    <OfPipeline id={id} title={`Version ${version}`} query={query}>
      {(detail) => <Detail id={id} detail={detail} />}
    </OfPipeline>
  );
}

/** Whether a version can no longer change. */
function isFinal(detail: VersionDetail | undefined): boolean {
  return detail !== undefined && !["open", "held", "publishing"].includes(detail.row.result);
}

function Detail({ id, detail }: { id: string; detail: VersionDetail }) {
  const { row, alteration } = detail;
  const link = (version: number | null) =>
    version === null ? (
      ""
    ) : (
      <VersionLink id={id} version={version}>
        version {version}
      </VersionLink>
    );
  const pipeline = useQuery({ queryKey: ["pipeline", id], queryFn: () => api.pipeline(id) });
  return (
    <Stack gap="6">
      <Facts
        facts={[
          ["State", label(row)],
          ["Description", row.description === row.kind ? "" : row.description],
          ["Expired", row.is_expired ? "cannot be read or rolled back to, and vacuum may have deleted its files" : ""],
          ["Reason", row.reason],
          ["Does not pass a gate", row.failed_gates.join("; ")],
          ["Replaced by", link(row.replaced_by)],
          ["Replaces", link(row.replaces)],
          ["Rolls back to", link(row.rolls_back_to)],
          ["Sinks whose earlier rows are hidden", alteration?.removed.join(", ")],
          ["Dropped state", alteration?.state.join(", ")],
          [
            "New partitions",
            Object.entries(alteration?.partitions ?? {})
              .map((pair) => pair.join(" from "))
              .join(", "),
          ],
          ["Planned (UTC)", utc(row.planned_at_ms)],
          ["Closed (UTC)", utc(row.decided_at_ms)],
          ["Published (UTC)", utc(row.published_at_ms)],
          ["Duration", duration(row.duration_ms)],
          ["Planning", row.of_kind.has_rows ? duration(row.planning_ms) : ""],
          ["Staging", row.of_kind.stages ? duration(row.staged_ms) : ""],
          ["Publishing", duration(row.publishing_ms)],
          ["Unread when planned", row.lag === null ? "" : count(row.lag)],
          ["Guarantee", row.of_kind.uses_spec ? guarantee(detail.guarantee, detail.conditions) : ""],
          ["Transform", row.of_kind.has_rows ? detail.transform : ""],
          ["Run", row.run_key],
          ["Watermark (UTC)", row.of_kind.is_announced ? utc(row.watermark_ms) : ""],
          ["Changed in the spec", row.changed.join(", ")],
        ]}
      />
      {pipeline.data === undefined ? null : <Actions pipeline={pipeline.data} row={row} />}
      {detail.rewrite === null ? null : (
        <Section title="Rewrite">
          <RewriteFacts id={id} row={row} rewrite={detail.rewrite} />
        </Section>
      )}
      <Counts title="Counts" counts={row.counts} />
      <Counts title="Removed counts" counts={detail.removed} />
      <Section title="Ranges" isShown={row.of_kind.has_rows}>
        <Rows
          caption="offset ranges"
          columns={["Partition", "Start (inclusive)", "End (exclusive)", "Offsets (including gaps)", "Gaps"]}
          rows={detail.ranges.map((range) => ({
            id: range.partition,
            cells: [
              range.partition,
              range.start,
              range.end,
              range.count,
              range.gaps.map((gap) => `[${gap.start}, ${gap.end})`).join(", "),
            ],
          }))}
        />
      </Section>
      <Section title="Sinks" isShown={row.of_kind.has_rows || detail.sinks.length > 0}>
        <Rows
          caption="sinks"
          columns={["Sink", "State", "Rows", "Published rows", "Receipt"]}
          rows={detail.sinks.map((sink) => ({
            id: sink.sink,
            cells: [
              sink.sink,
              sink.state,
              count(sink.rows),
              count(sink.published_rows),
              sink.detail === null || sink.detail === undefined ? (
                ""
              ) : (
                <Code key="detail">{JSON.stringify(sink.detail)}</Code>
              ),
            ],
          }))}
        />
      </Section>
      <Section title="Attempts" isShown={row.of_kind.stages}>
        <Rows
          caption="attempts"
          columns={["Attempt", "Result", "Staging", "Rows"]}
          rows={detail.attempts.map((attempt) => ({
            id: attempt.attempt_id,
            cells: [
              attempt.attempt_id,
              attempt.result,
              duration(attempt.staged_ms),
              Object.entries(attempt.rows)
                .map(([sink, rows]) => `${sink} ${count(rows)}`)
                .join(", "),
            ],
          }))}
        />
      </Section>
      <Section
        title={detail.files.length < row.files ? `Files (${detail.files.length} of ${row.files})` : "Files"}
        isShown={row.of_kind.stages}
      >
        <Rows
          caption="files"
          columns={["Sink", "File", "Rows", "Size", "Partition"]}
          rows={detail.files.map((file) => ({
            id: `${file.sink}/${file.path}`,
            cells: [
              file.sink,
              file.path,
              count(file.rows),
              size(file.bytes),
              Object.entries(file.partition)
                .map(([name, value]) => `${name}=${value ?? "null"}`)
                .join(", "),
            ],
          }))}
        />
      </Section>
      <Section title="State" isShown={detail.state.length > 0 && row.of_kind.is_announced}>
        <Rows
          caption="state"
          columns={["Operator", "Rows", "Size", "Partitions"]}
          rows={detail.state.map((state, at) => ({
            id: String(at),
            cells: [state.operator, count(state.rows), size(state.bytes), state.partitions],
          }))}
        />
      </Section>
      {detail.quarantined === 0 ? null : <Quarantine id={id} version={row.version} total={detail.quarantined} />}
      <Section title="Settings">
        <Box as="pre" fontSize="xs" overflowX="auto" borderWidth="1px" rounded="md" p="3" tabIndex={0}>
          {JSON.stringify(detail.settings, null, 2)}
        </Box>
      </Section>
    </Stack>
  );
}

function Counts({ title, counts }: { title: string; counts: Record<string, number> }) {
  const facts = Object.entries(counts).map(([name, value]): [string, string] => [name, count(value)]);
  return (
    <Section title={title} isShown={facts.length > 0}>
      <Facts facts={facts} />
    </Section>
  );
}

function Section({ title, children, isShown = true }: { title: string; children: React.ReactNode; isShown?: boolean }) {
  if (!isShown) return null;
  return (
    <Stack as="section" gap="2">
      <Heading size="md" as="h2">
        {title}
      </Heading>
      {children}
    </Stack>
  );
}

function Quarantine({ id, version, total }: { id: string; version: number; total: number }) {
  const [isOpen, open] = useState(false);
  const settings = useQuery({ queryKey: ["settings"], queryFn: api.settings, refetchInterval: false });
  const query = useQuery({
    queryKey: ["quarantine", id, version],
    queryFn: () => api.quarantine(id, version),
    enabled: isOpen,
    refetchInterval: false,
  });
  if (settings.data?.shows_records !== true) {
    return (
      <Section title="Quarantine">
        <Text>
          {count(total)} records are quarantined. Their contents are hidden
          {settings.data === undefined ? "" : `: use ${settings.data.show_records_with} to show them`}.
        </Text>
      </Section>
    );
  }
  return (
    <Section title="Quarantine">
      {isOpen ? (
        <Fetched query={query}>
          {(records) => (
            <Rows
              caption="quarantined records"
              columns={["Position", "Error", "Record"]}
              rows={records.map((record, at) => ({
                id: String(at),
                cells: [JSON.stringify(record.position), record.error, <Code key="raw">{record.raw}</Code>],
              }))}
            />
          )}
        </Fetched>
      ) : (
        <Box>
          <Button size="sm" variant="outline" onClick={() => open(true)}>
            Show the first of {count(total)} quarantined records
          </Button>
        </Box>
      )}
    </Section>
  );
}
