"""
A plain task: read the offsets file, read up to a bounded end, append, replace the offsets file.

The task is written with care. It fixes the end, the last stable offset, before it reads. It replaces the offsets file atomically, after the write.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from typing import Any

from tests.chaos.producer import PARTITIONS
from tests.chaos.setting import MAX_ROWS
from tests.chaos.subjects.contract import Subject

TIMEOUT_S = 30.0


class OffsetsTask(Subject):
    title = "plain task: offsets file, append Parquet, replace offsets file"
    conf: Mapping[str, str] = {}

    def drain(self, run_key: str) -> bool:
        ends = self._ends()
        empty = True
        while True:
            state = self._state()
            start = state["offsets"]
            end = {p: min(start[p] + MAX_ROWS // PARTITIONS, ends[p]) for p in ends}
            if all(start[p] >= end[p] for p in end):
                return empty
            self.append(self._frame(start, {p: max(start[p], end[p]) for p in end}))
            self._replace({"offsets": {p: max(start[p], end[p]) for p in end}, "batches": state["batches"] + 1})
            empty = False

    def append(self, frame: Any) -> None:
        frame.write.mode("append").parquet(str(self.out))

    def _frame(self, start: Mapping[str, int], end: Mapping[str, int]) -> Any:
        from tests.chaos.subjects.session import session

        return (
            session(self.setting, self.conf)
            .read.format("kafka")
            .option("kafka.bootstrap.servers", self.setting.bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", self.setting.topic)
            .option("startingOffsets", json.dumps({self.setting.topic: start}))
            .option("endingOffsets", json.dumps({self.setting.topic: end}))
            .load()
            .selectExpr("CAST(value AS STRING) value", "partition", "offset")
        )

    def _ends(self) -> dict[str, int]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.setting.bootstrap, "group.id": "ends", "isolation.level": "read_committed"}
        )
        try:
            return {
                str(p): consumer.get_watermark_offsets(TopicPartition(self.setting.topic, p), timeout=TIMEOUT_S)[1]
                for p in range(PARTITIONS)
            }
        finally:
            consumer.close()

    def _state(self) -> Any:
        try:
            return json.loads((self.setting.root / "offsets.json").read_text())
        except FileNotFoundError:
            return {"offsets": {str(p): 0 for p in range(PARTITIONS)}, "batches": 0}

    def _replace(self, state: Any) -> None:
        temporary = self.setting.root / f"offsets.{uuid.uuid4().hex}"
        temporary.write_text(json.dumps(state))
        os.replace(temporary, self.setting.root / "offsets.json")

    def commits(self) -> int:
        return int(self._state()["batches"])
