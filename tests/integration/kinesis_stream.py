"""A Kinesis stream, and a pipeline that reads it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import FilesSink, Json, KinesisSource, Pipeline, run_batch
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.integration.parts.kinesis import Kinesalite

_NAMES = itertools.count()
LOW, HIGH = "0", str(2**128 - 1)


class Orders:
    """A stream for one test, with the pipeline that reads it."""

    def __init__(self, server: Kinesalite, root: Path, shards: int = 1) -> None:
        self.server, self.root = server, root
        self.name = f"orders-{next(_NAMES)}"
        server.create(self.name, shards)
        self.client = server.client()
        self.sent: list[int] = []
        self.hours = 0

    def put(self, *ids: int, key: str = LOW) -> list[str]:
        """Add records. Returns their sequence numbers."""
        data = [json.dumps({"id": id}).encode() for id in ids]
        self.sent += ids
        return [self.put_data(record, key) for record in data]

    def put_data(self, data: bytes, key: str = LOW) -> str:
        number: str = self.client.put_record(StreamName=self.name, Data=data, PartitionKey="k", ExplicitHashKey=key)[
            "SequenceNumber"
        ]
        return number

    def shards(self) -> dict[str, dict[str, Any]]:
        return {shard["ShardId"]: shard for shard in self.client.list_shards(StreamName=self.name)["Shards"]}

    def split(self, shard: str) -> None:
        keys = self.shards()[shard]["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(middle))
        self.server.wait_for(self.name)

    def merge(self, one: str, other: str) -> None:
        self.client.merge_shards(StreamName=self.name, ShardToMerge=one, AdjacentShardToMerge=other)
        self.server.wait_for(self.name)

    def source(self, **changes: Any) -> KinesisSource:
        arguments = {
            "stream": self.name,
            "endpoint_url": self.server.url,
            "region": "us-east-1",
            "value": Json("id long"),
        }
        return KinesisSource(**arguments | changes)

    def pipeline(self, **changes: Any) -> Pipeline:
        source = self.source(**changes.pop("source", {}))
        sink = FilesSink(path=str(self.root / "out"), format="json")
        return Pipeline(name="orders", log=str(self.root / "log"), source=source, sinks={"out": sink}, **changes)

    def at(self, hours: int) -> None:
        """Set the clocks of the server and of the next runs, relative to the real one."""
        self.server.set_clock(hours)
        self.hours = hours

    def run(self, run_key: str, **changes: Any) -> Any:
        clock = SYSTEM_CLOCK if not self.hours else ManualClock(SYSTEM_CLOCK.now_ms() + self.hours * 3_600_000, run_key)
        log = CommitLog(open_store(str(self.root / "log")), clock)
        return run_batch(self.pipeline(**changes), run_key=run_key, drain=True, log=log)

    def visible(self) -> Counter[int]:
        files = open_log(CommitLog(open_store(str(self.root / "log")))).files()
        return Counter(json.loads(line)["id"] for file in files for line in Path(file.path).read_text().splitlines())

    def check(self) -> None:
        assert (
            verify(open_log(CommitLog(open_store(str(self.root / "log"))), pipeline=self.pipeline())).violations == []
        )
        assert self.visible() == Counter(self.sent)

    def planned(self) -> list[list[str]]:
        """Return the shards that each version reads."""
        versions = open_log(CommitLog(open_store(str(self.root / "log")))).versions(newest_first=False)
        return [[pin["shard"] for pin in version.plan.pins] for version in versions]
