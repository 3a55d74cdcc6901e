import { Box, Flex, Stack, Text } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import { Link } from "react-router-dom";
import type { VersionRow } from "../api/client";
import { type CellState, LOOKS, label, look, sinkState, versionState } from "../state";
import { duration } from "../text";

const CELL = "16px";
const BARS = 48;
/** The opacity of versions that have expired. */
const EXPIRED = 0.4;

/** A column for each version, oldest first: the duration as a bar, the state of the version, and the state of each sink. */
export function Grid({ id, versions }: { id: string; versions: VersionRow[] }) {
  const area = useRef<HTMLDivElement>(null);
  const isEmpty = versions.length === 0;
  // Show the newest versions first, even if not all versions fit.
  useEffect(() => {
    if (!isEmpty && area.current !== null) area.current.scrollLeft = area.current.scrollWidth;
  }, [isEmpty]);
  const sinks = [...new Set(versions.flatMap((row) => Object.keys({ ...row.sinks, ...row.rewritten })))].sort();
  const longest = Math.max(1, ...versions.map((row) => row.duration_ms ?? 0));
  return (
    <Flex gap="3">
      <Stack gap="1" pt={`${BARS + 4}px`} flexShrink={0} maxW="40%">
        {["version", ...sinks].map((name) => (
          <Text key={name} fontSize="xs" h={CELL} lineHeight={CELL} truncate title={name}>
            {name}
          </Text>
        ))}
      </Stack>
      <Flex
        ref={area}
        minW="0"
        gap="2px"
        overflowX="auto"
        pb="2"
        tabIndex={0}
        role="region"
        aria-label="batch grid, oldest version first"
      >
        {[...versions].reverse().map((row) => (
          <Column key={row.version} id={id} row={row} sinks={sinks} longest={longest} />
        ))}
      </Flex>
    </Flex>
  );
}

function Column({ id, row, sinks, longest }: { id: string; row: VersionRow; sinks: string[]; longest: number }) {
  const state = versionState(row);
  const states: [string, CellState][] = [
    ["version", state],
    ...sinks.map((sink): [string, CellState] => [sink, sinkState(row, sink)]),
  ];
  const quarantined = row.counts.quarantined ?? 0;
  const marks = [...(row.has_gaps ? ["gap"] : []), ...(quarantined > 0 ? [`${quarantined} quarantined`] : [])];
  const ofSinks = sinks.map((sink) => `${sink}: ${look(row, sinkState(row, sink)).label}`);
  const text = [`version ${row.version}: ${label(row)}`, duration(row.duration_ms), ...marks, ...ofSinks]
    .filter(Boolean)
    .join(", ");
  return (
    <Link to={`/pipelines/${id}/versions/${row.version}`} aria-label={text} title={text}>
      <Stack gap="1" align="center" opacity={row.is_expired ? EXPIRED : 1} _hover={{ opacity: 0.7 }}>
        <Flex h={`${BARS}px`} align="flex-end">
          <Box
            w="8px"
            rounded="sm"
            bg={look(row, state).color}
            h={`${Math.max(2, ((row.duration_ms ?? 0) / longest) * BARS)}px`}
          />
        </Flex>
        {states.map(([name, each]) => (
          <Flex key={name} w={CELL} h={CELL} rounded="sm" bg={look(row, each).color} align="center" justify="center">
            {name === "version" && marks.length > 0 ? (
              <Box w="6px" h="6px" rounded="full" bg="white" borderWidth="1px" borderColor="black" />
            ) : null}
          </Flex>
        ))}
      </Stack>
    </Link>
  );
}

/** The looks of the kinds that the versions have, and of all other states. */
export function Legend({ versions }: { versions: VersionRow[] }) {
  const kinds = [...new Map(versions.map((row) => [row.kind, row])).values()];
  const shown = [...kinds.map((row) => row.of_kind), ...Object.values(LOOKS).filter((each) => each !== LOOKS.none)];
  return (
    <Flex gap="4" wrap="wrap" fontSize="xs">
      {shown.map(({ label: text, color }) => (
        <Flex key={text} gap="1" align="center">
          <Box w="10px" h="10px" rounded="sm" bg={color} />
          {text}
        </Flex>
      ))}
      <Flex gap="1" align="center">
        <Box w="8px" h="8px" rounded="full" bg="white" borderWidth="1px" borderColor="black" />
        with a gap or quarantined records
      </Flex>
      <Flex gap="1" align="center">
        <Box w="10px" h="10px" rounded="sm" bg="green.solid" opacity={EXPIRED} />
        pale: expired
      </Flex>
    </Flex>
  );
}
