import { Box, SimpleGrid, Text } from "@chakra-ui/react";
import {
  BarElement,
  CategoryScale,
  Chart,
  type ChartData,
  Legend,
  LinearScale,
  LineElement,
  PointElement,
  Tooltip,
} from "chart.js";
import { useTheme } from "next-themes";
import { Bar, Line } from "react-chartjs-2";
import type { VersionRow } from "../api/client";
import { brokenRules, phases, rewritten, written } from "../state";
import { age } from "../text";

Chart.register(BarElement, CategoryScale, Legend, LinearScale, LineElement, PointElement, Tooltip);

const PHASES = [
  ["plan", "#64748b"],
  ["stage", "#9333ea"],
  ["commit", "#ca8a04"],
  ["publish", "#ea580c"],
] as const;

const RULES = ["#dc2626", "#ea580c", "#ca8a04", "#7c3aed", "#0891b2", "#64748b"] as const;

/** The rows, the durations by phase, the lag and the broken rules of the versions, oldest first. */
export function Timeline({ versions }: { versions: VersionRow[] }) {
  const { resolvedTheme } = useTheme();
  const ink = resolvedTheme === "dark" ? "#d4d4d8" : "#3f3f46";
  const lines = resolvedTheme === "dark" ? "#3f3f46" : "#e4e4e7";
  const closed = [...versions].reverse().filter((row) => row.decided_at_ms !== null);
  const labels = closed.map((row) => (row.of_kind.has_rows ? String(row.version) : `${row.version} ${row.kind}`));
  const rewrites = closed.filter((row) => rewritten(row) > 0).length;
  const options = (title: string, stacked = false) => ({
    animation: false as const,
    maintainAspectRatio: false,
    scales: {
      x: { stacked, ticks: { color: ink, maxTicksLimit: 12 }, grid: { color: lines } },
      y: {
        stacked,
        beginAtZero: true,
        ticks: { color: ink },
        grid: { color: lines },
        title: { display: true, text: title, color: ink },
      },
    },
    plugins: { legend: { labels: { color: ink } } },
  });
  const rows: ChartData<"bar"> = {
    labels,
    datasets: [
      { label: "read", data: closed.map((row) => row.counts.read ?? 0), backgroundColor: "#3b82f6" },
      { label: "written", data: closed.map(written), backgroundColor: "#16a34a" },
      ...(rewrites === 0 ? [] : [{ label: "rewritten", data: closed.map(rewritten), backgroundColor: "#22d3ee" }]),
    ],
  };
  const seconds: ChartData<"bar"> = {
    labels,
    datasets: PHASES.map(([name, color]) => ({
      label: name,
      data: closed.map((row) => phases(row)[name]),
      backgroundColor: color,
    })),
  };
  const lag: ChartData<"line"> = {
    labels,
    datasets: [
      {
        label: "unread when planned",
        data: closed.map((row) => row.lag),
        borderColor: "#0891b2",
        backgroundColor: "#0891b2",
        spanGaps: true,
      },
    ],
  };
  const rules = brokenRules(closed).map((name, at) => ({
    label: name,
    data: closed.map((row) => (row.of_kind.has_rows ? (row.counts[name] ?? 0) : null)),
    borderColor: RULES[at % RULES.length],
    backgroundColor: RULES[at % RULES.length],
    spanGaps: true,
  }));
  const slowest = closed.reduce<VersionRow | undefined>(
    (found, row) => ((row.duration_ms ?? 0) > (found?.duration_ms ?? -1) ? row : found),
    undefined,
  );
  return (
    <SimpleGrid columns={{ base: 1, lg: 2 }} gap="6">
      <Box h="64">
        <Bar
          data={rows}
          options={options("records")}
          aria-label={`records read and written by ${closed.length} versions; rewrites: ${rewrites}`}
          role="img"
        />
      </Box>
      <Box h="64">
        <Bar
          data={seconds}
          options={options("seconds", true)}
          aria-label={`duration of ${closed.length} versions by phase; the slowest is version ${slowest?.version ?? "none"}`}
          role="img"
        />
      </Box>
      <Box h="64">
        <Line
          data={lag}
          options={options("items")}
          aria-label={`unread items of the source when each of ${closed.length} versions was planned`}
          role="img"
        />
      </Box>
      {rules.length === 0 ? null : (
        <Box h="64">
          <Line
            data={{ labels, datasets: rules }}
            options={options("records and rows that break a rule")}
            aria-label={`records and rows of ${closed.length} versions that break each of ${rules.length} rules`}
            role="img"
          />
        </Box>
      )}
      {slowest === undefined ? null : (
        <Text fontSize="sm" color="fg.muted">
          The slowest of these versions is {slowest.version}, with {age(slowest.duration_ms ?? 0)}.
        </Text>
      )}
    </SimpleGrid>
  );
}
