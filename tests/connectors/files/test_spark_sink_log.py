"""Files that a streaming query has written are read once it has committed them, as its ``_spark_metadata`` says."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, open_log, run_batch, verify
from airflow_provider_streamsem.connectors.files.spark_sink_log import committed
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine


def entry(path: str, action: str = "add") -> str:
    return json.dumps({"path": path, "size": 1, "isDir": False, "modificationTime": 1, "blockReplication": 1, "blockSize": 1, "action": action})  # fmt: skip


def write(root: Path, batches: dict[str, list[str]], *, version: str = "v1") -> set[str] | None:
    """Write the batches of a log, and return the committed files."""
    log = root / "_spark_metadata"
    log.mkdir(exist_ok=True)
    for name, lines in batches.items():
        (log / name).write_text("\n".join([version, *lines]), errors="surrogateescape")
    store = open_store(str(root))
    return committed(store, [stat.key for stat in store.list("")], str(root))


def test_directory_without_the_log_of_a_query_has_no_committed_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    store = open_store(str(tmp_path))
    assert committed(store, ["a.json"], str(tmp_path)) is None


def test_newest_compacted_batch_and_later_ones_are_read(tmp_path: Path) -> None:
    batches = {
        "3": [entry(f"file://{tmp_path}/old")],
        "9.compact": [entry(f"file://{tmp_path}/a"), entry(f"file://{tmp_path}/c%3D1%252F/b%20b")],
        "10": [entry(f"file://{tmp_path}/c")],
        "11": [],
        ".12.tmp": ["not valid"],
    }
    assert write(tmp_path, batches) == {"a", "c=1%2F/b b", "c"}


def test_paths_on_s3_are_those_below_the_bucket() -> None:
    store = open_store("memory://spark-sink-log")
    store.create("_spark_metadata/0", f"v1\n{entry('s3a://bucket/out/p/a.parquet')}".encode())
    assert committed(store, ["_spark_metadata/0"], "s3://bucket/out") == {"p/a.parquet"}


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"0": [], "2": []}, "a batch of the log is missing"),
        ({"9.compact": [], "11": []}, "a batch of the log is missing"),
        ({"0": ["{"]}, "a line of the log is not valid"),
        ({"0": ['{"path": "x"}']}, "a line of the log is not valid"),
        ({"0": [entry("file:///elsewhere/a")]}, "names files of another directory"),
        ({"0": ["", entry("/x")]}, "a line of the log is not valid"),
        ({"0": ["[" * 100_000]}, "a line of the log is not valid"),
        ({"0": ["1"]}, "a line of the log is not valid"),
        ({"0": ["9" * 10_000]}, "a line of the log is not valid"),
        ({"0": ['{"path": 1, "action": "add"}']}, "a line of the log is not valid"),
        ({"0": ['{"path": null, "action": "add"}']}, "a line of the log is not valid"),
        ({"0": ['{"path": "http://[x", "action": "add"}']}, "a line of the log is not valid"),
        ({"0": [entry("é").replace("\\u00e9", "\udc80")]}, "a line of the log is not valid"),
    ],
)
def test_log_that_is_not_understood_is_refused(tmp_path: Path, batches: dict[str, list[str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        write(tmp_path, batches)


@pytest.mark.parametrize("content", [b"", b"\n", b"v1\n\n", b"\xff"])
def test_empty_or_damaged_batch_is_refused(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {})
    (tmp_path / "_spark_metadata" / "0").write_bytes(content)
    with pytest.raises(DataError, match="cannot be used"):
        write(tmp_path, {})


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda each: st.lists(each, max_size=2) | st.dictionaries(st.sampled_from(["path", "action", "x"]), each, max_size=3))  # fmt: skip


@given(
    st.lists(
        JSON.map(json.dumps) | st.text(max_size=9) | st.sampled_from(["s3a://b/o/x", "//[", "http://[/"]).map(entry),
        max_size=3,
    )
)
def test_log_of_any_form_names_files_or_is_refused(lines: list[str]) -> None:
    store = MemoryStore(objects={"_spark_metadata/0": "\n".join(["v1", *lines]).encode("utf-8", "surrogatepass")})
    with suppress(DataError):
        assert committed(store, ["_spark_metadata/0"], "s3://b/o") <= {"x"}  # type: ignore[operator]


def test_path_may_contain_any_character_that_python_treats_as_a_line_break(tmp_path: Path) -> None:
    names = {f"a{character}b" for character in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"}
    lines = [json.dumps({"path": f"file://{tmp_path}/{name}", "action": "add"}, ensure_ascii=False) for name in names]
    assert write(tmp_path, {"0": lines}) == names


def test_committed_file_that_is_missing_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "0.json").write_text('{"id": 0}\n')
    write(out, {"0": [entry(f"file://{out}/{name}") for name in ("0.json", "1.json", "_2.json", "3.json")]})
    source = FilesSource(path=str(out), format="json", schema="id long")
    assert [file.path for file in source.listing(0)] == ["0.json"]
    assert "2 files that a streaming query has committed are missing" in caplog.text
    assert "1.json" in caplog.text


def test_unknown_version_or_action_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another version than v1"):
        write(tmp_path, {"0": []}, version="v2")
    with pytest.raises(DataError, match="not known"):
        write(tmp_path, {"0": [entry(f"file://{tmp_path}/a", action="delete")]})


def pipeline(root: Path, path: Path, format: str = "json") -> Pipeline:
    return Pipeline(
        name="migrated",
        log=str(root / "log"),
        source=FilesSource(path=str(path), format=format, schema="id long"),
        sinks={"out": FilesSink(path=str(root / "new"), format="json")},
    )


def ids(root: Path) -> Counter[int]:
    lines = [line for file in open_log(str(root / "log")).files() for line in Path(file.path).read_text().splitlines()]
    return Counter(json.loads(line)["id"] for line in lines)


def test_files_of_the_query_are_read_once_they_are_committed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for number in range(3):
        (out / f"{number}.json").write_text(f'{{"id": {number}}}\n')
    write(out, {"0": [entry(f"file://{out}/0.json")]})
    run_batch(pipeline(tmp_path, out), run_key="a", engine=RowsEngine())
    assert ids(tmp_path) == Counter([0])
    write(out, {"1": [entry(f"file://{out}/2.json")]})
    run_batch(pipeline(tmp_path, out), run_key="b", engine=RowsEngine())
    assert ids(tmp_path) == Counter([0, 2])
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.parametrize("path", ["", "out/day=1"])
def test_path_above_or_inside_the_directory_of_a_query_is_refused(tmp_path: Path, path: str) -> None:
    out = tmp_path / "data" / "out"
    (out / "day=1").mkdir(parents=True)
    (out / "day=1" / "a.json").write_text('{"id": 1}\n')
    write(out, {"0": [entry(f"file://{out}/day%3D1/a.json")]})
    with pytest.raises(InvalidError, match=r"is inside the output of a streaming query|contains a table"):
        run_batch(pipeline(tmp_path, tmp_path / "data" / path), run_key="a", engine=RowsEngine())


@pytest.mark.spark
@pytest.mark.slow
def test_output_of_a_real_query_is_read_without_its_uncommitted_files(tmp_path: Path, spark: Any) -> None:
    """The query has a compacted batch. A copy of each file is what a repeated batch leaves behind."""
    source, out = tmp_path / "in", tmp_path / "out dir"
    source.mkdir()
    for number in range(12):
        (source / f"{number:02}.json").write_text(f'{{"id": {number}}}\n')
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))
    writer = reader.selectExpr("*", "id % 2 AS odd").writeStream.partitionBy("odd").format("json")
    query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start(str(out))
    assert query.awaitTermination(120)
    assert list((out / "_spark_metadata").glob("*.compact"))
    for file in list(out.rglob("*.json")):
        shutil.copy(file, file.with_name(f"copy-{file.name}"))
    run_batch(pipeline(tmp_path, out), run_key="a", drain=True, engine=RowsEngine())
    assert ids(tmp_path) == Counter(range(12))
