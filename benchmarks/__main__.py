"""
Runs the benchmarks (``make bench``). They measure the cost of the package in counts, and in ratios to a peer in the same run.

1. The log requests of a batch and the time of planning at 10^2, 10^4 and 10^6 versions, with a synthetic log in memory.
2. The log requests and bytes of a poll of a path with 1,000,000 files and 100,000 earlier discoveries.
3. A batch on Spark, compared with a plain read and Parquet write of the same files in the same process.
4. A retry of a committed batch, and the import of the package.
5. Only if they are named: ``cold_state``, ``compact``, ``connect``, ``dedup``, ``delta``, ``files``, ``iceberg_publish``, ``kafka``, ``kafka_json``,
   ``expectations``, ``merge``, ``parsing``, ``postgres``, ``sources``, ``start`` and ``state``. See their modules.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice, takewhile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol import codec, keys, segments
from airflow_provider_streamsem.protocol.entries import (
    Committable,
    DataFile,
    Discovery,
    Outcome,
    PageRef,
    PipelineRecord,
    Plan,
    RunPointer,
)
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.stores.contract import ObjectStat
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import CountingStore
from benchmarks import discovery
from tests.integration.parts.server import stop_servers_on_sigterm

console = Console(width=120)
ON_SERVERS = (
    "cold_state",
    "compact",
    "connect",
    "dedup",
    "delta",
    "expectations",
    "files",
    "iceberg_publish",
    "kafka",
    "kafka_json",
    "merge",
    "parsing",
    "postgres",
    "sources",
    "start",
    "state",
)


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


# --- 1. growth


class SortedStore(MemoryStore):
    """A store of millions of objects. It keeps its keys in order, so that the time of a listing does not depend on their number."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._keys: list[str] = []

    def fill(self, objects: Mapping[str, bytes]) -> None:
        """Add objects."""
        self.objects.update(objects)
        self._keys = sorted(self.objects)

    def create(self, key: str, data: bytes) -> bool:
        """Create an object if its key is absent."""
        is_new = super().create(key, data)
        if is_new:
            insort(self._keys, key)
        return is_new

    def delete(self, key: str) -> None:
        """Delete an object if it exists."""
        if key in self.objects:
            del self._keys[bisect_left(self._keys, key)]
        super().delete(key)

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Yield objects in ascending order of their keys."""
        at = bisect_right(self._keys, start_after) if start_after > prefix else bisect_left(self._keys, prefix)
        found = takewhile(lambda key: key.startswith(prefix), (self._keys[i] for i in range(at, len(self._keys))))
        return (self._stat(key) for key in islice(found, limit))


def history(root: Path, versions: int, *, whole: int) -> tuple[Pipeline, MemoryStore]:
    """
    Create a pipeline whose log has this many commits of one file each.

    The newest ``whole`` versions are complete. The older ones are empty objects, because no writer reads them.
    """
    (root / "in").mkdir(parents=True)
    store = SortedStore(f"memory://bench-{versions}")
    pipeline = Pipeline(
        name="bench",
        log=store.url,
        source=FilesSource(path=str(root / "in"), format="json", schema="id long"),
        sinks={"out": FilesSink(path=str(root / "out"), format="json")},
    )
    spec = pipeline.spec_bytes()
    record = PipelineRecord(pipeline_uuid="u", name="bench", spec=codec.sha256(spec), nonce="n")
    objects = {keys.PIPELINE: codec.encode(record).data, keys.spec(codec.sha256(spec)): spec}
    pages = (PageRef(sha256="", level=0, files=versions),)  # no poll reads the files of this page
    newest = Discovery(i=0, first=0, recent=(), pages=pages, known=(), settled_ns=versions, nonce="n")
    CommitLog(store).of_source(pipeline.source.immutable_config()).create(
        keys.discovered(newest.i), codec.encode(newest).data
    )
    previous = ""
    for version in range(max(0, versions - whole)):
        objects[keys.plan(version)] = objects[keys.outcome(version)] = b"{}"
    for version in range(max(0, versions - whole), versions):
        plan = Plan(
            version=version, work=Batch(), previous=previous, ranges={"files": (version, version + 1)}, run_key=f"run-{version}", j=0,
            run_start={"files": version}, planned_at_ms=1, spec=codec.sha256(spec), transform="", initial_offsets=None if version else {"files": 0},
            nonce=f"p{version}",
        )  # fmt: skip
        encoded = codec.encode(plan)
        outcome = Outcome(
            version=version, result="commit", work=Batch(), plan=encoded.sha256, attempt_id="a",
            sinks={"out": Committable(format="json", rows=1, files=(DataFile(key=f"data/{version}/a/f.json", bytes=9, rows=1, checksum="x"),))},
            counts={"read": 1, "parsed": 1, "quarantined": 0, "filtered": 0, "written.out": 1}, next={"files": version + 1},
            hint={"newest": newest.i, "bytes_per_row": 10}, spec=codec.sha256(spec), transform="", decided_at_ms=2, nonce=f"o{version}",
        )  # fmt: skip
        data = codec.encode(outcome)
        objects[keys.plan(version)], objects[keys.outcome(version)] = encoded.data, data.data
        objects[keys.pointer(plan.run_key, 0)] = codec.encode(
            RunPointer(run_key=plan.run_key, j=0, version=version)
        ).data
        previous = data.sha256
    store.fill(objects)
    sink = pipeline.sinks["out"]
    sink.claim("u", pipeline.log, new=True)
    return pipeline, store


def growth(sizes: Sequence[int] = (100, 10_000, 1_000_000)) -> None:
    """Measure requests and time of one batch as the log grows."""
    rows = []
    for versions in sizes:
        with tempfile.TemporaryDirectory() as location:
            pipeline, store = history(Path(location), versions, whole=150)
            times, counts = [], None
            for n in range(7):
                (Path(location) / "in" / f"new-{n}.json").write_text('{"id": 1}\n')
                counting = CountingStore(store)
                plan_times: list[float] = []
                began = time.perf_counter()
                engine = RowsEngine(
                    lambda step, began=began, plan_times=plan_times: (
                        plan_times.append(time.perf_counter() - began) if step == "read" else None
                    )
                )
                run_batch(pipeline, run_key=f"bench-{n}", engine=engine, log=CommitLog(counting))
                times.append(plan_times[0] * 1000)
                requests = [(m, k) for m, k in counting.keys if not k.startswith(("segments/", "specs/"))]
                counts = [sum(m == method for m, _ in requests) for method in ("list", "read", "create")]
            assert counts is not None
            batch = sum(counts) - 1 - 2
            rows.append(
                [f"{versions:,}", str(batch), "1", "2", *map(str, counts), f"{statistics.median(times):.1f} ms"]
            )
    columns = [
        "versions",
        "batch",
        "opening",
        "discovery",
        "LIST",
        "GET",
        "PUT",
        "open, recover, discover and plan (median)",
    ]
    show("1. log requests of a single batch, and the time until its plan is stored", columns, rows)


def upkeep() -> None:
    """Measure the cost of writing segments and of vacuum."""
    segment_costs()
    vacuum_costs()


def vacuum_costs(sizes: Sequence[int] = (100, 1_000, 10_000, 100_000)) -> None:
    """Measure the requests of a vacuum with nothing to delete: the first one, and one after all versions were inspected."""
    rows = []
    for versions in sizes:
        with tempfile.TemporaryDirectory() as location:
            pipeline, store = history(Path(location), versions, whole=versions)
            store.objects.update({keys.attempt(version, "a"): b"{}" for version in range(versions)})
            log = CommitLog(store)
            for version in range(99, versions, 100):
                log.write_segments(version, [])
            row = [f"{versions:,}"]
            for _ in range(2):
                counting = CountingStore(store)
                began = time.perf_counter()
                assert vacuum(pipeline, log=CommitLog(counting)).keys == ()
                row += [f"{sum(counting.requests.values()):,}", f"{(time.perf_counter() - began) * 1000:.0f} ms"]
            rows.append(row)
    columns = ["versions", "requests, first", "time", "requests, later", "time"]
    show("   vacuum with nothing to delete, log in memory", columns, rows)


def segment_costs() -> None:
    """Measure the GET and PUT requests per version for writing segments, over 10,000 versions."""
    with tempfile.TemporaryDirectory() as location:
        _, store = history(Path(location), 10_000, whole=10_000)
        counting = CountingStore(store)
        log = CommitLog(counting)
        for version in range(99, 10_000, 100):
            log.write_segments(version, [])
        gets, puts = (counting.requests[m] / 10_000 for m in ("read", "create"))
        written = len(list(store.list("segments/")))
        assert written == 100 + segments.due(9_999)[-1][0] - 1
        show(
            "   writing segments, without a cache, over 10,000 versions",
            ["GET per version", "PUT per version", "segments"],
            [[f"{gets:.4f}", f"{puts:.4f}", str(written)]],
        )


# --- 2. discovery


def discoveries() -> None:
    """Measure the log requests of one poll, by the number of earlier discoveries and by the changes since."""
    show(
        "2. log requests of one poll, mean / maximum (without the listing of the path)",
        discovery.COLUMNS,
        list(discovery.rows()),
    )


# --- 3. Spark


def on_spark() -> None:
    """Compare a batch with a plain read and write of the same files."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = [
        ratio(spark, count, format, pairs)
        for count, format, pairs in (
            (1_000, "parquet", 25),
            (1_000_000, "parquet", 15),
            (1_000_000, "csv", 9),
            (1_000_000, "json", 9),
        )
    ]
    columns = [
        "rows",
        "input",
        "plain (median)",
        "batch (median)",
        "ratio (median of pairs)",
        "difference (median of pairs)",
    ]
    show(
        "3. one batch, compared with a plain Spark read and Parquet write of the same files, in one process",
        columns,
        rows,
    )
    spark.stop()


def ratio(spark: object, count: int, format: str, pairs: int) -> list[str]:
    """Run the plain copy and the batch in turn. The first three pairs are not counted."""
    with tempfile.TemporaryDirectory() as location:
        root = Path(location)
        frame = spark.range(0, count, 1, 2).selectExpr(  # type: ignore[attr-defined]
            "id", "concat('user', id % 1000) user", "double(id) / 4 amount", "timestamp_seconds(id) at", "sha2(string(id), 256) token"
        )  # fmt: skip
        frame.write.format(format).options(header="true").save(str(root / "made"))
        schema = "id long, user string, amount double, at timestamp, token string"
        parts = sorted((root / "made").glob("part-*"))
        plain, batch = [], []
        for turn in range(pairs + 3):
            (root / "in").mkdir(exist_ok=True)
            files = [(root / "in" / f"{turn:03d}-{n}.{format}") for n, _ in enumerate(parts)]
            for part, path in zip(parts, files, strict=True):
                path.hardlink_to(part)
            times: dict[str, float] = {}
            jobs: list[tuple[str, Callable[[], object]]] = [
                (
                    "plain",
                    lambda files=files, turn=turn: plain_copy(spark, files, format, schema, root / "plain" / str(turn)),
                ),
                ("batch", lambda turn=turn: batch_copy(root, format, schema, turn)),
            ]
            for name, job in jobs if turn % 2 else reversed(jobs):
                began = time.perf_counter()
                job()
                times[name] = time.perf_counter() - began
            for path in files:
                path.unlink()
            if turn >= 3:
                plain.append(times["plain"])
                batch.append(times["batch"])
        ratios = [b / p for b, p in zip(batch, plain, strict=True)]
        differences = [(b - p) * 1000 for b, p in zip(batch, plain, strict=True)]
        return [
            f"{count:,}", format, f"{statistics.median(plain) * 1000:.0f} ms", f"{statistics.median(batch) * 1000:.0f} ms",
            f"{statistics.median(ratios):.2f}", f"{statistics.median(differences):+.0f} ms",
        ]  # fmt: skip


def plain_copy(spark: object, files: list[Path], format: str, schema: str, location: Path) -> None:
    """Copy the files with plain Spark."""
    read = spark.read.schema(schema).options(header="true").format(format).load([str(path) for path in files])  # type: ignore[attr-defined]
    read.write.option("compression", "zstd").parquet(str(location))


def batch_copy(root: Path, format: str, schema: str, turn: int) -> None:
    """Copy the files with a batch of a pipeline on a local log."""
    pipeline = Pipeline(
        name="bench", log=str(root / "log"), sinks={"out": FilesSink(path=str(root / "out"))},
        source=FilesSource(path=str(root / "in"), format=format, schema=schema, options={"header": "true"} if format == "csv" else {}),
    )  # fmt: skip
    result = run_batch(pipeline, run_key=f"turn-{turn}")
    assert result.status == "committed"


# --- 4. retry and import


def retry_and_import() -> None:
    """Measure a retry of a committed batch, and the import of the package after the import of Airflow."""
    with tempfile.TemporaryDirectory() as location:
        root = Path(location)
        (root / "in").mkdir()
        (root / "in" / "a.json").write_text('{"id": 1}\n')
        pipeline = Pipeline(
            name="bench", log=str(root / "log"), sinks={"out": FilesSink(path=str(root / "out"), format="json")},
            source=FilesSource(path=str(root / "in"), format="json", schema="id long"),
        )  # fmt: skip
        run_batch(pipeline, run_key="once", engine=RowsEngine())
        began = time.perf_counter()
        run_batch(pipeline, run_key="once")
        retry = (time.perf_counter() - began) * 1000
    code = "import time, airflow.sdk; began = time.perf_counter(); import airflow_provider_streamsem{}; print((time.perf_counter() - began) * 1000)"
    imports = [
        min(
            float(subprocess.check_output([sys.executable, "-c", code.format(submodule)], text=True).splitlines()[-1])
            for _ in range(3)
        )
        for submodule in ("", ".operators.micro_batch")
    ]
    show(
        "4. retry and import",
        [
            "retry of a committed batch (starts no Spark session)",
            "import of the package after airflow.sdk",
            "import of its operator",
        ],
        [[f"{retry:.1f} ms", f"{imports[0]:.1f} ms", f"{imports[1]:.1f} ms"]],
    )


PARTS: dict[str, Callable[[], None]] = {
    "growth": growth,
    "upkeep": upkeep,
    "discovery": discoveries,
    "spark": on_spark,
    "retry": retry_and_import,
}


def main() -> None:
    """Run the benchmarks that the command line names. Default: all that need no servers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PARTS, *ON_SERVERS]))
    names = parser.parse_args().parts or list(PARTS)
    unknown = sorted(set(names) - {*PARTS, *ON_SERVERS})
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}. Do: use some of {', '.join([*PARTS, *ON_SERVERS])}.")
    stop_servers_on_sigterm()
    for name in names:
        if name in ON_SERVERS:
            import_module(f"benchmarks.{name}").main()
        else:
            PARTS[name]()


if __name__ == "__main__":
    main()
