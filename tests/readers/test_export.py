"""Exports for other engines name exactly the visible files of a version."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.readers.export import duckdb_view, polars_scan, write_symlink_manifests
from airflow_provider_streamsem.readers.files import CommittedFile
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.pipeline_fixture import PipelineFixture


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Two batches, of which the first was reprocessed."""
    fixture = PipelineFixture(tmp_path / "it's")
    fixture.arrive(4)
    fixture.run("first", drain=True)
    fixture.run("fix", reprocessed=0)
    return fixture


def file(path: str, **partition: str | None) -> CommittedFile:
    return CommittedFile(
        version=0, sink="out", path=path, format="parquet", bytes=1, rows=1, partition=partition, checksum="x"
    )


def test_view_of_duckdb_has_the_visible_rows(fixture: PipelineFixture) -> None:
    with duckdb.connect() as db:
        db.execute(duckdb_view('my "orders"', fixture.opened().files()))
        rows = db.execute('SELECT id FROM "my ""orders"""').fetchall()
    assert Counter(n for (n,) in rows) == fixture.expected


def test_scan_of_polars_has_the_visible_rows(fixture: PipelineFixture) -> None:
    scope: dict[str, Any] = {}
    exec(polars_scan("my-orders", fixture.opened().files()), scope)
    assert Counter(scope["my_orders"].collect()["id"].to_list()) == fixture.expected


@pytest.mark.parametrize("format", ["parquet", "json"])
@pytest.mark.parametrize(
    "name",
    ["[a]", "a*", "a?", "{a,b}", "a b", "it's", 'a"b', "a\\b", "%5B", "é", "[!a]", "a]", "**", "k=1", "$x", "a#b"],
)
def test_exported_code_reads_exactly_the_named_file_whatever_its_path_contains(
    tmp_path: Path, name: str, format: str
) -> None:
    """The files beside it have names that a pattern could match."""
    for number, directory in enumerate([name, "a", "b", "ab", "axb", "x"]):
        (tmp_path / directory).mkdir(exist_ok=True)
        rows, path = polars.DataFrame({"id": [number]}), tmp_path / directory / f"{name}.{format}"
        rows.write_parquet(path) if format == "parquet" else rows.write_ndjson(path)
    files = [dataclasses.replace(file(str(tmp_path / name / f"{name}.{format}")), format=format)]
    scope: dict[str, Any] = {}
    exec(polars_scan("1st", files), scope)
    assert scope["_1st"].collect()["id"].to_list() == [0]
    with duckdb.connect() as db:
        db.execute(duckdb_view("v", files))
        assert db.execute("SELECT id FROM v").fetchall() == [(0,)]


def test_path_that_a_format_cannot_name_is_refused() -> None:
    with pytest.raises(InvalidError, match="DuckDB cannot name"):
        duckdb_view("v", [file("/a\\b/[1]/x.parquet")])
    with pytest.raises(InvalidError, match="manifest cannot name"):
        write_symlink_manifests(MemoryStore("memory://line-break"), [file("/a\nb/x.parquet")])


def test_manifest_names_the_visible_files_of_the_version(fixture: PipelineFixture) -> None:
    store = MemoryStore("memory://manifests")
    assert write_symlink_manifests(store, fixture.opened().files(version=0)) == ["manifest"]
    text = store.read("manifest")
    assert text is not None
    paths = text.decode().splitlines()
    assert paths == sorted(file.path for file in fixture.opened().files(version=0))
    ids = [json.loads(line)["id"] for path in paths for line in Path(path).read_text().splitlines()]
    assert Counter(ids) == Counter(range(6))
    write_symlink_manifests(store, fixture.opened().files(version=0))
    with pytest.raises(ConflictError, match="manifests of another version"):
        write_symlink_manifests(store, fixture.opened().files())


def test_each_partition_has_a_manifest_below_its_values() -> None:
    store = MemoryStore("memory://partitions")
    files = [
        file("s3://b/1", day="2026-01-31", g="a/b=c"),
        file("s3://b/2", day=None, g="é%"),
        file("s3://b/3", day=None, g="é%"),
    ]
    assert write_symlink_manifests(store, files) == [
        "day=2026-01-31/g=a%2Fb%3Dc/manifest",
        "day=__HIVE_DEFAULT_PARTITION__/g=%C3%A9%25/manifest",
    ]
    assert store.read("day=__HIVE_DEFAULT_PARTITION__/g=%C3%A9%25/manifest") == b"s3://b/2\ns3://b/3\n"


def test_partition_that_a_later_version_no_longer_has_leaves_no_stale_manifest() -> None:
    store = MemoryStore("memory://stale")
    files = [file("s3://b/1", day="1"), file("s3://b/2", day="2")]
    write_symlink_manifests(store, files)
    with pytest.raises(ConflictError, match="manifests of another version"):
        write_symlink_manifests(store, files[1:])


def test_version_without_files_has_an_empty_manifest() -> None:
    store = MemoryStore("memory://empty")
    assert (write_symlink_manifests(store, []), store.read("manifest")) == (["manifest"], b"")


@pytest.mark.parametrize("export", [duckdb_view, polars_scan])
def test_files_that_an_engine_cannot_read_together_are_refused(export: Any) -> None:
    one = file("s3://b/1")
    for files in ([], [dataclasses.replace(one, format="orc")], [one, dataclasses.replace(one, format="json")]):
        with pytest.raises(InvalidError, match="nothing was printed"):
            export("orders", files)
