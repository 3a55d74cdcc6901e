"""Topics for tests, written and read only with confluent-kafka, and a pipeline that reads them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from airflow_provider_streamsem import FilesSink, KafkaSource, Pipeline, RunResult, open_log, run_batch, verify
from airflow_provider_streamsem.engine import Engine
from tests.integration.parts.kafka import Broker

TIMEOUT_S = 30


@dataclass
class Topics:
    """One broker, topics whose names are unique to the test, and a location for log and dataset."""

    broker: Broker
    location: Path
    prefix: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    def name(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    def create(self, topic: str, partitions: int = 2, **config: str) -> str:
        new = NewTopic(self.name(topic), partitions, config={k.replace("_", "."): v for k, v in config.items()})
        self.admin.create_topics([new])[self.name(topic)].result(TIMEOUT_S)
        self.until(lambda: self.name(topic) in self.admin.list_topics(timeout=TIMEOUT_S).topics)
        return self.name(topic)

    def alter(self, topic: str, **config: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name(topic), incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([self.name(topic)])[self.name(topic)].result(TIMEOUT_S)
        self.until(lambda: self.name(topic) not in self.admin.list_topics(timeout=TIMEOUT_S).topics)

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name(topic), partitions)])[self.name(topic)].result(TIMEOUT_S)
        self.until(
            lambda: len(self.admin.list_topics(timeout=TIMEOUT_S).topics[self.name(topic)].partitions) == partitions
        )

    def delete_below(self, topic: str, partition: int, offset: int) -> None:
        """Delete records at once, as retention does."""
        tp = TopicPartition(self.name(topic), partition, offset)
        for future in self.admin.delete_records([tp]).values():
            future.result(TIMEOUT_S)

    def put(self, topic: str, values: Iterable[Any], *, partition: int = 0, **message: Any) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for value in values:
            data = value if isinstance(value, bytes) or value is None else str(value).encode()
            producer.produce(self.name(topic), data, partition=partition, **message)
        assert producer.flush(TIMEOUT_S) == 0

    def transaction(
        self, topic: str, values: Iterable[Any], *, partition: int = 0, transactional_id: str = ""
    ) -> Producer:
        """Write records in a transaction, and leave the transaction open."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": transactional_id or uuid.uuid4().hex}
        )
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name(topic), str(value).encode(), partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        return producer

    def wait_for_transactions(self, topic: str, partition: int = 0) -> None:
        """Wait until no transaction is open. The broker acknowledges a commit or an abort before its marker is in the topic."""
        tp = TopicPartition(self.name(topic), partition)

        def end(level: IsolationLevel) -> int:
            futures = self.admin.list_offsets({tp: OffsetSpec.latest()}, isolation_level=level)
            offset: int = futures[tp].result(TIMEOUT_S).offset
            return offset

        self.until(lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED))

    def read(self, topic: str) -> Counter[str]:
        """Read the topic with a plain consumer, and count the values."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": uuid.uuid4().hex,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        partitions = self.admin.list_topics(timeout=TIMEOUT_S).topics[self.name(topic)].partitions
        consumer.assign([TopicPartition(self.name(topic), p, 0) for p in partitions])
        counts: Counter[str] = Counter()
        left = len(partitions)
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error():
                left -= 1
            else:
                counts[message.value().decode()] += 1
        consumer.close()
        return counts

    def until(self, condition: Callable[[], Any], seconds: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not become true in time"
            time.sleep(0.1)

    def pipeline(self, *topics: str, source: dict[str, Any] | None = None, **changes: Any) -> Pipeline:
        arguments: dict[str, Any] = {
            "topics": [self.name(t) for t in topics],
            "bootstrap_servers": self.broker.bootstrap,
            **(source or {}),
        }
        spec = Pipeline(
            name="orders",
            log=str(self.location / "log"),
            source=KafkaSource(**arguments),
            sinks={"out": FilesSink(path=str(self.location / "out"))},
        )
        return spec.replace(**changes) if changes else spec

    def run(self, pipeline: Pipeline, run_key: str, *, drain: bool = True, engine: Engine | None = None) -> RunResult:
        return run_batch(pipeline, run_key=run_key, drain=drain, engine=engine)

    def rows(self, columns: str = "decode(value)") -> list[tuple[Any, ...]]:
        """Query the files that the log names with DuckDB."""
        files = [file.path for file in open_log(str(self.location / "log")).files()]
        if not files:
            return []
        return duckdb.sql(f"select {columns} from read_parquet({files}, union_by_name=true)").fetchall()

    def values(self) -> Counter[str]:
        return Counter(value for (value,) in self.rows())

    def check(self, expected: Counter[str]) -> None:
        """Check that exactly the expected values are visible, and that the log is clean."""
        assert verify(str(self.location / "log")).violations == []
        actual = self.values()
        assert actual - expected == Counter(), "duplicated"
        assert expected - actual == Counter(), "lost"
