"""One pipeline into files, a Delta table, an Iceberg table, Postgres, a Kafka topic and an HTTP endpoint at once, on real servers: killed at every step, then all hold the same."""

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
from airflow_provider_streamsem.commitlog.log import CommitLog, Patience
from airflow_provider_streamsem.sinks import iceberg_catalog
from airflow_provider_streamsem.sinks.delta import DeltaSink
from airflow_provider_streamsem.sinks.http import HttpSink
from airflow_provider_streamsem.sinks.iceberg import IcebergSink
from airflow_provider_streamsem.sinks.jdbc import JdbcSink
from airflow_provider_streamsem.sinks.kafka import KafkaSink
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import SteppedStore, Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.s3 import S3Server, downloaded
from tests.integration.parts.server import home_for_others, running
from tests.integration.topics import Topics
from tests.sinks.endpoints import Recorder, serving
from tests.stepped import stepped
from tests.worlds import World

pytestmark = pytest.mark.integration
PUBLISHING = (DeltaSink, HttpSink, IcebergSink, JdbcSink, KafkaSink)


class RowsToS3(RowsEngine):
    """Rows without Spark, into a bucket."""

    def _write(self, place: str, rows: list[dict[str, Any]], format: str) -> None:
        bucket, _, prefix = place.removeprefix("s3a://").partition("/")
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


class ManyWorld(World):
    """Six sinks in places of their own."""

    def __init__(self, root: Path, servers: Servers) -> None:
        self.servers, self.name = servers, f"w{uuid.uuid4().hex[:8]}"
        self.base = f"s3://lake/{self.name}"
        super().__init__(root, store=open_store(f"{self.base}/log"))
        servers.topics.create(self.name, 1)
        self.sql(f"CREATE TABLE {self.name} (id bigint)")

    def log(self, store: Store | None = None) -> CommitLog:
        """Ids that no other world has: servers outlive it."""
        return CommitLog(store or self.store, ManualClock(name=f"{self.name}p{next(self.clocks)}"), Patience(tries=6))

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
        return super().pipeline(sinks=sinks, transform=shaped, **changes)

    @property
    def catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"}

    def held(self) -> dict[str, Counter[int]]:
        """Sink → the ids that its readers find."""
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


def shaped(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    records = [{"key": f"k{row['id']}", "value": str(row["id"])} for row in rows]
    names = ("files", "delta", "iceberg", "database", "topic", "calls")
    return {name: records if name == "topic" else rows for name in names}


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[str], object]]:
    """The last function in the list is called before and after each sink publishes."""
    steps: list[Callable[[str], object]] = [lambda name: None]
    for kind in PUBLISHING:
        monkeypatch.setattr(kind, "publish", stepped(kind.__name__, kind.publish, lambda name: steps[-1](name)))
    return steps


def test_pipeline_that_is_killed_at_every_step_leaves_the_same_in_six_unlike_sinks(
    servers: Servers, around: list[Callable[[str], object]], tmp_path: Path
) -> None:
    def killed(at: int | None) -> tuple[ManyWorld, Steps]:
        servers.endpoint.calls.clear()
        world, steps = ManyWorld(tmp_path / f"{at}", servers), Steps(at)
        world.arrive(2)
        around.append(steps)

        def step(name: str) -> None:
            if "create" in name or steps.died:  # reading changes nothing for those who follow
                steps(name)

        with suppress(Crash):
            world.run("run", store=SteppedStore(world.store, step), engine=RowsToS3())
        around.append(lambda name: None)
        return world, steps

    world, alone = killed(None)
    assert [name for name in alone.taken if "Sink" in name] == [
        f"{when} {kind.__name__}"
        for kind in (HttpSink, JdbcSink, DeltaSink, IcebergSink, KafkaSink)
        for when in ("before", "after")
    ]
    assert world.held() == dict.fromkeys(world.pipeline().sinks, world.expected)
    for at in range(len(alone.taken)):
        world, steps = killed(at)
        assert steps.died
        world.arrive(1)
        for run_key in ("other", "run"):
            world.run(run_key, drain=True, engine=RowsToS3())
        where = f"killed at {at}, {steps.taken[-1]}"
        assert world.held() == dict.fromkeys(world.pipeline().sinks, world.expected), where
        assert world.verdict().findings == [], where
