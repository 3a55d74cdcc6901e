"""
A pipeline that writes files, a Delta table, an Iceberg table, Postgres, a Kafka topic and HTTP calls on real servers. The test kills it at every step.
After recovery all sinks contain the same records.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pyarrow
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from airflow_provider_streamsem import FilesSink, Pipeline
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.connectors.iceberg import catalog as iceberg_catalog
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.connectors.kafka.sink import KafkaSink
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.http.endpoints import Recorder, serving
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.s3 import S3Server, downloaded
from tests.integration.parts.server import home_for_others, running
from tests.integration.topics import Topics
from tests.pipeline_fixture import PipelineFixture
from tests.step_by_step import step_by_step

pytestmark = [pytest.mark.integration, pytest.mark.prove]
PUBLISHING = (DeltaSink, HttpSink, IcebergSink, JdbcSink, KafkaSink)


class RowsToS3(RowsEngine):
    """An engine without Spark that writes rows to a bucket."""

    def _write(self, location: str, rows: list[dict[str, Any]], format: str) -> None:
        bucket, _, prefix = location.removeprefix("s3a://").partition("/")
        data = BytesIO()
        if format == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), data)
        else:
            data.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        boto3.client("s3").put_object(Bucket=bucket, Key=f"{prefix}/part-00000.{format}", Body=data.getvalue())


@dataclass
class Servers:
    s3: S3Server
    topics: Topics
    postgres: Postgres
    endpoint: Recorder


@pytest.fixture
def servers(s3_server: S3Server, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    with home_for_others() as home, serving(Recorder()) as endpoint:
        postgres = Postgres(home / "server")
        with running(postgres):
            monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://postgres:hunter2@127.0.0.1:{postgres.port}/postgres")
            yield Servers(s3_server, Topics(broker, tmp_path), postgres, endpoint)


class SixSinksFixture(PipelineFixture):
    """A pipeline fixture with six sinks."""

    def __init__(self, root: Path, servers: Servers) -> None:
        self.servers, self.name = servers, f"w{uuid.uuid4().hex[:8]}"
        self.base = f"s3://lake/{self.name}"
        super().__init__(root, store=open_store(f"{self.base}/log"))
        servers.topics.create(self.name, 1)
        self.sql(f"CREATE TABLE {self.name} (id bigint)")

    def log(self, store: Store | None = None) -> CommitLog:
        """Use a clock name that no other fixture has, because the servers outlive the fixture."""
        return CommitLog(
            store or self.store, ManualClock(name=f"{self.name}p{next(self.clocks)}"), RetryPolicy(tries=6)
        )

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.servers.postgres.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def pipeline(self, **changes: Any) -> Pipeline:
        topics = self.servers.topics
        sinks = {
            "files": FilesSink(f"{self.base}/files", format="json"),
            "delta": DeltaSink(f"{self.base}/delta"),
            "iceberg": IcebergSink(f"{self.base}/iceberg", f"lake.{self.name}", properties=self.catalog),
            "database": JdbcSink("db", self.name, f"{self.base}/for-db", markers=f"{self.name}_markers"),
            "topic": KafkaSink(
                f"{self.base}/for-topic", topic=topics.name(self.name), bootstrap_servers=topics.broker.bootstrap,
                control_topic=topics.name("markers"), transaction_timeout_s=20,
            ),
            "calls": HttpSink(f"{self.base}/for-calls", url=self.servers.endpoint.url, idempotent=True),
        }  # fmt: skip
        return super().pipeline(sinks=sinks, transform=rows_for_sinks, **changes)

    @property
    def catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"}

    def ids_by_sink(self) -> dict[str, Counter[int]]:
        """Read each sink with its own tools, and return the ids."""
        options = self.servers.s3.deltalake_options()
        table = DeltaTable(f"{self.base}/delta", storage_options=options).to_pyarrow_table()
        with load_catalog("default", **self.catalog, **iceberg_catalog._s3_properties(self.base)) as catalog:
            scanned = catalog.load_table(f"lake.{self.name}").scan().to_arrow()
        files = [Path(downloaded(file.path, self.root / "copies")) for file in self.opened().files()]
        return {
            "files": Counter(json.loads(line)["id"] for file in files for line in file.read_text().splitlines()),
            "delta": Counter(table["id"].to_pylist()),
            "iceberg": Counter(scanned["id"].to_pylist()),
            "database": Counter(id for (id,) in self.sql(f"SELECT id FROM {self.name}")),
            "topic": Counter({int(id): times for id, times in self.servers.topics.read(self.name).items()}),
            "calls": Counter(body["id"] for body in self.servers.endpoint.table().values()),
        }


def rows_for_sinks(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    records = [{"key": f"k{row['id']}", "value": str(row["id"])} for row in rows]
    names = ("files", "delta", "iceberg", "database", "topic", "calls")
    return {name: records if name == "topic" else rows for name in names}


@pytest.fixture
def publish_steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[str], object]]:
    """Return a list of callbacks. The last one is called before and after each sink publishes."""
    steps: list[Callable[[str], object]] = [lambda name: None]
    for kind in PUBLISHING:
        monkeypatch.setattr(kind, "publish", step_by_step(kind.__name__, kind.publish, lambda name: steps[-1](name)))
    return steps


def test_pipeline_killed_at_every_step_leaves_the_same_records_in_six_sinks(
    servers: Servers, publish_steps: list[Callable[[str], object]], tmp_path: Path
) -> None:
    def killed(at: int | None) -> tuple[SixSinksFixture, Steps]:
        servers.endpoint.calls.clear()
        fixture, steps = SixSinksFixture(tmp_path / f"{at}", servers), Steps(at)
        fixture.arrive(2)
        publish_steps.append(steps)

        def step(name: str) -> None:
            if "create" in name or steps.died:  # a crash at a read changes nothing for later runs
                steps(name)

        with suppress(Crash):
            fixture.run("run", store=StepReportingStore(fixture.store, step), engine=RowsToS3())
        publish_steps.append(lambda name: None)
        return fixture, steps

    fixture, without_kill = killed(None)
    assert [name for name in without_kill.taken if "Sink" in name] == [
        f"{when} {kind.__name__}"
        for kind in (HttpSink, JdbcSink, DeltaSink, IcebergSink, KafkaSink)
        for when in ("before", "after")
    ]
    assert fixture.ids_by_sink() == dict.fromkeys(fixture.pipeline().sinks, fixture.expected)
    for at in range(len(without_kill.taken)):
        fixture, steps = killed(at)
        assert steps.died
        fixture.arrive(1)
        for run_key in ("other", "run"):
            fixture.run(run_key, drain=True, engine=RowsToS3())
        where = f"killed at {at}, {steps.taken[-1]}"
        assert fixture.ids_by_sink() == dict.fromkeys(fixture.pipeline().sinks, fixture.expected), where
        assert fixture.verdict().violations == [], where
