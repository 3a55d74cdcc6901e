"""Structured Streaming with `foreachBatch`, which appends to Parquet."""

from __future__ import annotations

from typing import Any

from tests.chaos.subjects.contract import Subject


class ForeachBatch(Subject):
    title = "Structured Streaming, `foreachBatch` appends Parquet"

    def drain(self, run_key: str) -> bool:
        from tests.chaos.subjects.session import drain_query, stream

        out = str(self.out)

        def append(batch: Any, batch_id: int) -> None:
            batch.write.mode("append").parquet(out)

        writer = stream(self.setting).writeStream.foreachBatch(append)
        return drain_query(writer, str(self.setting.root / "checkpoint"))

    def commits(self) -> int:
        return sum(p.name.isdigit() for p in (self.setting.root / "checkpoint" / "commits").glob("*"))
