"""
The time of publishing as an Iceberg table grows: ``python -m benchmarks.iceberg_publish [--expire]``.

Each version has one file with one row. The table is on local disk, and its catalog is a SQL catalog in SQLite. The columns are milliseconds:
``publish`` is the median of ten versions from a committed batch to its receipt. ``load`` is the time to open the catalog and load the table.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet

from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.protocol.entries import Committable, Marker

SCHEMA = (
    '{"type":"struct","fields":['
    '{"name":"id","type":"long","nullable":true,"metadata":{}},{"name":"name","type":"string","nullable":true,"metadata":{}}]}'
)


def staged(sink: IcebergSink, version: int) -> Committable:
    """Write one file, as an engine would."""
    location = Path(sink.attempt_location(version, "a"))
    location.mkdir(parents=True)
    pyarrow.parquet.write_table(
        pyarrow.table({"id": [version], "name": [f"row {version}"]}), location / "part-0.parquet"
    )
    return sink.collect(version, "a")


def main() -> None:
    """Publish the versions, and print a line at each count."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--versions", type=int, nargs="+", default=[10, 100, 300])
    arguments.add_argument("--expire", action="store_true", help="expire snapshots after one second")
    args, _ = arguments.parse_known_args()
    with tempfile.TemporaryDirectory() as root:
        sink = IcebergSink(
            f"{root}/table",
            "bench.rows",
            properties={"type": "sql", "uri": f"sqlite:///{root}/catalog.db"},
            expire_after_s=1 if args.expire else None,
        )
        print(f"{'versions':>9} {'publish ms':>11} {'slowest':>8} {'load ms':>8} {'snapshots':>10}")
        times_ms: list[float] = []
        for version in range(max(args.versions)):
            files = staged(sink, version)
            before = Marker(version=version - 1, outcome="0" * 64) if version else None
            batch = SinkCommit(
                pipeline_uuid="bench", sink="rows", version=version, outcome="0" * 64, committable=files, schema=SCHEMA, root=version, expected_marker=before
            )  # fmt: skip
            began = time.perf_counter()
            sink.publish(batch)
            times_ms.append((time.perf_counter() - began) * 1000)
            if version + 1 in args.versions:
                began = time.perf_counter()
                sink.marker("bench", "rows")
                load = (time.perf_counter() - began) * 1000
                with sink._opened() as catalog:
                    snapshots = len(catalog.load_table(sink.table).snapshots())
                last = times_ms[-10:]
                print(
                    f"{version + 1:>9} {statistics.median(last):>11.0f} {max(last):>8.0f} {load:>8.0f} {snapshots:>10}"
                )


if __name__ == "__main__":
    main()
