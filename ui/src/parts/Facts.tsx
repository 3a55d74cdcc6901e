import { DataList } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** Names and values, beside each other. Facts without a value are left out. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  return (
    <DataList.Root orientation="horizontal" size="md" gap="2">
      {facts
        .filter(([, value]) => value !== "" && value !== null && value !== undefined)
        .map(([name, value]) => (
          <DataList.Item key={name} alignItems="flex-start">
            <DataList.ItemLabel minW="40">{name}</DataList.ItemLabel>
            <DataList.ItemValue overflowWrap="anywhere" minW="0">
              {value}
            </DataList.ItemValue>
          </DataList.Item>
        ))}
    </DataList.Root>
  );
}
