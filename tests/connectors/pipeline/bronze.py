"""Two pipelines on local disk: bronze reads JSON files, silver reads the rows of bronze. Both run without Spark."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import FilesSink, Limits, Pipeline, PipelineSource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import Job, Produced
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

COLUMNS = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})


class TypedEngine(RowsEngine):
    """Records the column ``id long`` for files sinks too, so that Spark can read the rows."""

    def stage(self, job: Job, log: CommitLog) -> Produced:
        produced = super().stage(job, log)
        return dataclasses.replace(produced, schemas=dict.fromkeys(produced.schemas, COLUMNS))


@dataclasses.dataclass
class Bronze(PipelineFixture):
    """
    The upstream. A version reads one file. Its log is opened by URL.

    :attr sink: its sink, in place of that of the fixture
    """

    sink: FilesSink | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = open_memory_store(f"bronze-{id(self)}-{self.root.name}")
        self.store.objects.clear()

    def pipeline(self, **changes: Any) -> Pipeline:
        sinks = {} if self.sink is None else {"sinks": {"out": self.sink}}
        return super().pipeline(**{"name": "bronze", "limits": Limits(max_files=1), **sinks, **changes})

    def run(self, run_key: str = "run", **named: Any) -> Any:
        return super().run(run_key, **{"engine": TypedEngine(), **named})

    def commit(self, versions: int = 1) -> None:
        """Commit versions of one file each."""
        self.arrive(versions)
        self.run(f"commit-{self.made}", drain=True)

    def correct(self, version: int, by: int = 1_000) -> int:
        """Reprocess a version with a transform that adds ``by`` to each id. Returns the version of the reprocessing run."""
        fixed = self.pipeline(transform=lambda rows: [{"id": row["id"] + by} for row in rows])
        return int(self.run(f"fix-{version}-{by}", reprocessed=version, pipeline=fixed).version)

    def roll_back(self, version: int) -> None:
        """Roll back to a version."""
        from airflow_provider_streamsem import rollback

        rollback(self.pipeline(), version, log=self.log())

    def abort(self) -> None:
        """Leave an aborted version. The next run reads its file again."""
        from airflow_provider_streamsem.pipeline.maintenance.abort import abort

        self.arrive(1)
        self.dies(f"dies-{self.made}")
        abort(self.log(), self.opened().record, self.opened().head + 1, reason="for the test")

    def dies(self, *arguments: Any, **named: Any) -> None:
        """Leave an open version."""
        from contextlib import suppress

        from airflow_provider_streamsem.testing.stores import Crash

        def die(step: str) -> None:
            raise Crash

        with suppress(Crash):
            self.run(*arguments, **{"engine": TypedEngine(die), **named})
            raise AssertionError("it did not die")


@dataclasses.dataclass
class Silver(PipelineFixture):
    """The downstream."""

    bronze: Bronze = None  # type: ignore[assignment]
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def pipeline(self, **changes: Any) -> Pipeline:
        arguments = {
            "name": "silver",
            "source": PipelineSource(log=self.bronze.store.url, **self.source),
            "limits": Limits(max_rows=3),
            **self.changes,
            **changes,
        }
        return super().pipeline(**arguments)

    @property
    def expected(self) -> Counter[int]:
        """The visible rows of bronze."""
        return self.bronze.visible()

    def read(self, version: int) -> list[int]:
        """The upstream versions that a plan reads."""
        stored = self.log().plan(version)
        assert stored is not None
        return [pin["commit"] for plan in stored.pins for pin in plan["versions"]]


def pair(root: Path, *, changes: dict[str, Any] | None = None, **source: Any) -> tuple[Bronze, Silver]:
    """Two new pipelines."""
    bronze = Bronze(root / "bronze")
    return bronze, Silver(root / "silver", bronze=bronze, source=source, changes=changes or {})


def results(fixture: PipelineFixture) -> list[str]:
    """The kind or result of each version of a log."""
    return [
        "open" if v.outcome is None else v.plan.work.kind if v.outcome.committed else "abort"
        for v in fixture.opened().versions(newest_first=False)
    ]
