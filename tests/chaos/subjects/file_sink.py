"""Structured Streaming's Parquet sink. The checker reads its directory and ignores `_spark_metadata`."""

from __future__ import annotations

from tests.chaos.subjects.contract import Subject


class FileSink(Subject):
    title = "Structured Streaming, Parquet file sink, read by pyarrow"

    def drain(self, run_key: str) -> bool:
        from tests.chaos.subjects.session import drain_query, stream

        writer = stream(self.setting).writeStream.format("parquet").option("path", str(self.out))
        return drain_query(writer, str(self.setting.root / "checkpoint"))

    def commits(self) -> int:
        return sum(p.name.isdigit() for p in (self.setting.root / "checkpoint" / "commits").glob("*"))
