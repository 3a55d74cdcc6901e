"""
KafkaSource → Parquet and a Delta table on S3, a Postgres table and a Kafka topic. One outcome commits a version for all sinks. Each sink is then published.

The checker reads each sink with its own tools: the bytes of the logs, SQL, a plain consumer. A number is visible if all sinks contain it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.expected import read_topic
from tests.chaos.producer import PARTITIONS
from tests.chaos.setting import BUCKET, Setting
from tests.chaos.subjects.contract import Rows, VisibleRows, delta_files
from tests.chaos.subjects.streamsem import Streamsem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_streamsem import Pipeline

TABLE = "numbers"


def rows_for_sinks(frame: DataFrame) -> Mapping[str, DataFrame]:
    """Return Kafka's columns for the files, numbers for the database, and a key for the topic."""
    rows = frame.select("value", "partition", "offset")
    numbers = frame.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id", "partition", "offset")
    return {"out": rows, "delta": rows, "database": numbers, "topic": frame.selectExpr("value AS key", "value")}


class StreamsemIntoSinks(Streamsem):
    title = "this package: KafkaSource → Parquet, Delta, Postgres and a Kafka topic"
    needs = frozenset({"s3", "postgres"})

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._topic = f"{setting.topic}-out"
        self._waits_for_pending_publishes = False

    def pipeline(self) -> Pipeline:
        from airflow_provider_streamsem import DeltaSink, JdbcSink, KafkaSink

        plain = super().pipeline()
        location = f"s3://{BUCKET}/{self.setting.topic}"
        sinks = {
            **plain.sinks,
            "delta": DeltaSink(f"{location}/delta"),
            "database": JdbcSink("chaos", TABLE, f"{location}/for-database"),
            "topic": KafkaSink(
                f"{location}/for-topic", topic=self._topic, bootstrap_servers=self.setting.bootstrap, transaction_timeout_s=20
            ),
        }  # fmt: skip
        return plain.replace(sinks=sinks, transform=rows_for_sinks)

    # The checker. It uses no code of the package.

    def prepare(self) -> None:
        with psycopg.connect(self.setting.postgres, autocommit=True) as connection:
            connection.execute(f'CREATE TABLE {TABLE} (id bigint, "partition" int, "offset" bigint)')
        admin = AdminClient({"bootstrap.servers": self.setting.bootstrap})
        admin.create_topics([NewTopic(self._topic, PARTITIONS)])[self._topic].result(30)

    def fault_condition(self) -> Callable[[], bool]:
        """Alternate between uncommitted files and a committed version that is not published to every sink."""
        self._waits_for_pending_publishes = not self._waits_for_pending_publishes
        return self._has_pending_publishes if self._waits_for_pending_publishes else super().fault_condition()

    def _has_pending_publishes(self) -> bool:
        try:
            newest, is_committed = self.newest()
            return is_committed and not any(key.endswith(f"-{newest}.d.json") for key in self._keys("log/log/"))
        except (BotoCoreError, ClientError):
            return False

    def state(self) -> str:
        return super().state() + (", not yet published to every sink" if self._has_pending_publishes() else "")

    def visible(self) -> VisibleRows:
        rows = {"out": super().visible(), "delta": self._delta_rows(), "database": self._database_rows()}
        return self.merged({**rows, "topic": self._topic_rows()})

    def merged(self, by_sink: Mapping[str, VisibleRows]) -> VisibleRows:
        """Merge the rows of the sinks. A number in all sinks counts as often as in the sink with most copies. A number in only some sinks is a finding."""
        merged = VisibleRows(unreadable=[name for rows in by_sink.values() for name in rows.unreadable])
        for number in set().union(*(rows.counts for rows in by_sink.values())):
            copies = {name: rows.counts[number] for name, rows in by_sink.items()}
            if all(copies.values()):
                merged.counts[number] = max(copies.values())
            else:
                merged.violations.append(f"number {number} is not in every sink: {copies}")
        for partition in by_sink["database"].reached:
            merged.reached[partition] = min(
                by_sink[name].reached.get(partition, -1) for name in ("out", "delta", "database")
            )
        return merged

    def _delta_rows(self) -> VisibleRows:
        """Replay the table's log, entry by entry."""
        entry = re.compile(r"/\d{20}\.json$")
        log = sorted(key for key in self._keys("delta/_delta_log/") if entry.search(key))
        rows = VisibleRows()
        for path in delta_files(self._bytes(key).decode() for key in log):
            self._add(rows, f"{self._prefix}delta/{path}")
        return rows

    def _database_rows(self) -> VisibleRows:
        rows = VisibleRows()
        with psycopg.connect(self.setting.postgres) as connection:
            for number, partition, offset in connection.execute(f'SELECT id, "partition", "offset" FROM {TABLE}'):
                rows.add(Rows([number], {partition: offset}))
        return rows

    def _topic_rows(self) -> VisibleRows:
        topic = read_topic(self.setting.bootstrap, self._topic)
        return VisibleRows(counts=Counter({number: len(locations) for number, locations in topic.items()}))
