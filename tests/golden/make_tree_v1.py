"""
Makes a whole pipeline of release 0.1.0, log, arrivals and dataset: ``python -m tests.golden.make_tree_v1``. Committed, and never changed: later releases go on from it.

A log holds absolute places, so it lies where it was made while a test uses it.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline
from tests.pipeline_fixture import PipelineFixture
from tests.small_nodes import small_nodes

KEPT = Path(__file__).parent / "tree_v1"
PLACE = Path("/var/tmp/streamsem-golden-tree-v1")


def pipeline() -> Pipeline:
    return Pipeline(
        name="tree",
        log=str(PLACE / "log"),
        source=FilesSource(path=str(PLACE / "in"), format="json", schema="id long"),
        sinks={"out": FilesSink(path=str(PLACE / "out"), format="json")},
        limits=Limits(max_files=2),
    )


@contextmanager
def in_place() -> Iterator[Path]:
    """The tree where it was made, for one process at a time."""
    with open(f"{PLACE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        if KEPT.exists():
            shutil.copytree(KEPT, PLACE)
        try:
            yield PLACE
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def make() -> None:
    """Two versions of a drain, a redo of the first, an abort, and a version that is open; discovered files in small nodes, so that both trees exist."""
    from airflow_provider_streamsem.pipeline.maintenance import abort
    from airflow_provider_streamsem.stores.local import LocalStore

    shutil.rmtree(KEPT, ignore_errors=True)
    with in_place() as location, small_nodes():
        fixture = PipelineFixture(location, store=LocalStore(str(location / "log")))
        fixture.arrive(3)
        fixture.run("first", drain=True, pipeline=pipeline())
        fixture.run("again", reprocessed=0, pipeline=pipeline())
        fixture.arrive(2, bad_lines=1)
        fixture.dies("second", at="staged", pipeline=pipeline())
        opened = fixture.opened()
        abort(opened.log, opened.record, opened.head + 1, reason="for the tree")
        fixture.dies("third", at="read", pipeline=pipeline())
        shutil.copytree(location, KEPT)


if __name__ == "__main__":
    make()
