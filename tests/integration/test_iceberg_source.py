"""The Iceberg source on tables that Spark's own Iceberg writes through a REST catalog, compared with Spark's own Iceberg reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, FilesSource, IcebergSource, Limits, Pipeline, run_batch
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.errors import SourceChangedError
from airflow_provider_streamsem.readers.files import open_log
from tests.integration.parts.iceberg import RestCatalog, read_by_spark
from tests.integration.parts.server import running

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ODD = "element_at(array('plain', 'a/b c:d%é', null, '=', '+', 'a%20b'), CAST(id % 6 + 1 AS int))"
ROWS = f"id, {ODD} AS p, CASE WHEN id % 3 != 0 THEN date'1969-12-30' END AS day, named_struct('a', id, 'b', {ODD}) AS n"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    server = RestCatalog(tmp_path_factory.mktemp("iceberg"))
    with running(server):
        yield server


def rows(pipeline: Pipeline, spark: SparkSession, columns: str) -> list[str]:
    files = [file.path for file in open_log(pipeline.log).files()]
    return sorted(
        json.dumps(list(row), default=str)
        for row in spark.read.parquet(*files).selectExpr(columns.split(", ")).collect()
    )


def reading(catalog: RestCatalog, table: str, tmp_path: Path, **arguments: str) -> Pipeline:
    properties = {"type": "rest", "uri": catalog.url}
    location = load_catalog("default", **properties).load_table(table).location()
    source = IcebergSource(path=location.replace("file:/", "/"), table=table, properties=properties, **arguments)
    return Pipeline(
        name="source", log=str(tmp_path / "log"), source=source, limits=Limits(max_files=2),
        sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")},
    )  # fmt: skip


@pytest.mark.prove
def test_rows_are_those_of_sparks_own_reader(catalog: RestCatalog, spark: SparkSession, tmp_path: Path) -> None:
    read_by_spark(
        catalog,
        "CREATE NAMESPACE lake.db",
        "CREATE TABLE lake.db.t (id long, p string, day date, n struct<a: long, b: string>) USING iceberg PARTITIONED BY (p, bucket(2, id))",
        f"INSERT INTO lake.db.t SELECT {ROWS} FROM range(0, 12)",
    )
    pipeline = reading(catalog, "db.t", tmp_path)
    assert run_batch(pipeline, run_key="first", drain=True).counts["read"] == 12
    *_, own = read_by_spark(
        catalog,
        f"INSERT INTO lake.db.t SELECT {ROWS} FROM range(12, 15)",
        "CALL lake.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))",
        f"INSERT INTO lake.db.t SELECT {ROWS} FROM range(15, 16)",
        "SELECT id, p, day, n.a, n.b FROM lake.db.t",
    )
    assert run_batch(pipeline, run_key="second", drain=True).counts["read"] == 4
    assert rows(pipeline, spark, "id, p, day, n.a, n.b") == sorted(map(json.dumps, own))
    renamed = reading(catalog, "db.t", tmp_path / "renamed")
    *_, own = read_by_spark(
        catalog,
        "ALTER TABLE lake.db.t RENAME COLUMN n.b TO c",
        "ALTER TABLE lake.db.t RENAME COLUMN day TO date",
        "ALTER TABLE lake.db.t ADD COLUMN day string",
        "INSERT INTO lake.db.t VALUES (16, 'plain', null, named_struct('a', 1L, 'c', 'x'), 'new')",
        "SELECT id, p, date, n.a, n.c, day FROM lake.db.t",
    )
    run_batch(renamed, run_key="renamed", drain=True)
    assert rows(renamed, spark, "id, p, date, n.a, n.c, day") == sorted(map(json.dumps, own))
    read_by_spark(catalog, "DELETE FROM lake.db.t WHERE id = 3")
    with pytest.raises(SourceChangedError, match="overwrites or deletes"):
        run_batch(renamed, run_key="third", drain=True)


@pytest.mark.prove
def test_table_that_the_sink_writes_is_read_back(
    catalog: RestCatalog, spark: SparkSession, arrivals: Path, tmp_path: Path
) -> None:
    lines = [json.dumps({"id": n, "p": None if n == 1 else f"p {n}"}) for n in range(3)]
    (arrivals / "0.json").write_text("\n".join(lines))
    properties = {"type": "rest", "uri": catalog.url}
    sink = IcebergSink(str(tmp_path / "table"), "sunk.t", properties=properties, partition_by=["p"])
    source = FilesSource(path=str(arrivals), format="json", schema="id long, p string")
    run_batch(Pipeline(name="bronze", log=str(tmp_path / "bronze"), source=source, sinks={"t": sink}), run_key="bronze")
    pipeline = reading(catalog, "sunk.t", tmp_path)
    run_batch(pipeline, run_key="silver", drain=True)
    (own,) = read_by_spark(catalog, "SELECT id, p FROM lake.sunk.t")
    assert rows(pipeline, spark, "id, p") == sorted(map(json.dumps, own))
