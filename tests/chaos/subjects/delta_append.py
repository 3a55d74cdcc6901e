"""The plain task of `offsets_task`, with a Delta table. It appends without `txnAppId` and `txnVersion`. The checker replays the table's log."""

from __future__ import annotations

from typing import Any

from tests.chaos.setting import Setting
from tests.chaos.subjects.contract import VisibleRows, delta_files
from tests.chaos.subjects.offsets_task import OffsetsTask


class DeltaAppend(OffsetsTask):
    title = "plain task: offsets file, append to Delta, replace offsets file"

    def __init__(self, setting: Setting) -> None:
        from tests.integration.parts.install import classpath
        from tests.integration.parts.spark import session_conf

        super().__init__(setting)
        jars = f"{session_conf()['spark.driver.extraClassPath']}:{classpath('peers')}"
        self.conf = {
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }

    def append(self, frame: Any) -> None:
        frame.write.format("delta").mode("append").save(str(self.out))

    def visible(self) -> VisibleRows:
        log = sorted(p for p in (self.out / "_delta_log").glob("*.json") if p.stem.isdigit())
        return self.rows_in(self.out / path for path in delta_files(entry.read_text() for entry in log))
