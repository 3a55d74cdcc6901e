"""
Creates the pipeline ``tree_v1``, with its input, log and dataset, as release 0.1.0 wrote it: ``python -m tests.golden.make_tree_v1``.

The files are committed and never changed. Tests check that later releases continue the pipeline. The log contains absolute paths, so a test copies the
files to the path at which they were created.
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

STORED = Path(__file__).parent / "tree_v1"
LOCATION = Path("/var/tmp/streamsem-golden-tree-v1")


def pipeline() -> Pipeline:
    return Pipeline(
        name="tree",
        log=str(LOCATION / "log"),
        source=FilesSource(path=str(LOCATION / "in"), format="json", schema="id long"),
        sinks={"out": FilesSink(path=str(LOCATION / "out"), format="json")},
        limits=Limits(max_files=2),
    )


@contextmanager
def restored_tree() -> Iterator[Path]:
    """Copy the stored files to the path at which they were created. Only one process at a time enters the block."""
    with open(f"{LOCATION}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(LOCATION, ignore_errors=True)
        if STORED.exists():
            shutil.copytree(STORED, LOCATION)
        try:
            yield LOCATION
        finally:
            shutil.rmtree(LOCATION, ignore_errors=True)


def make() -> None:
    """
    Create the pipeline: two versions of a drain, the reprocessing of the first, an aborted version and an open version.

    The nodes of discovered files are small, so that the log has trees of pages and of known files.
    """
    from airflow_provider_streamsem.pipeline.maintenance.abort import abort
    from airflow_provider_streamsem.stores.local import LocalStore

    shutil.rmtree(STORED, ignore_errors=True)
    with restored_tree() as location, small_nodes():
        fixture = PipelineFixture(location, store=LocalStore(str(location / "log")))
        fixture.arrive(3)
        fixture.run("first", drain=True, pipeline=pipeline())
        fixture.run("again", reprocessed=0, pipeline=pipeline())
        fixture.arrive(2, bad_lines=1)
        fixture.dies("second", at="staged", pipeline=pipeline())
        opened = fixture.opened()
        abort(opened.log, opened.record, opened.head + 1, reason="for the tree")
        fixture.dies("third", at="read", pipeline=pipeline())
        shutil.copytree(location, STORED)


if __name__ == "__main__":
    make()
