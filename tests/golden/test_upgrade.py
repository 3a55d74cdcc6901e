"""This release reads and continues a pipeline of the first release."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from airflow_provider_streamsem import open_log, run_batch, verify
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.golden.make_tree_v1 import pipeline, restored_tree


def visible(location: Path) -> Counter[int]:
    files = open_log(str(location / "log")).files()
    return Counter(json.loads(line)["id"] for file in files for line in Path(file.path).read_text().splitlines())


def test_pipeline_of_release_0_1_0_is_read_and_continued_without_lost_or_duplicated_rows() -> None:
    with restored_tree() as location:
        # The log identifies a file by its modification time, which git does not store.
        for n, path in enumerate(sorted((location / "in").iterdir())):
            stamp = 1_700_000_000_000_000_000 + n * 1_000_000
            os.utime(path, ns=(stamp, stamp))
        before = verify(pipeline())
        assert (before.violations, before.versions, visible(location)) == ([], 4, Counter(range(9)))
        (location / "in" / "00005.json").write_text('{"id": 15}\n')
        finished = run_batch(pipeline(), run_key="third", engine=RowsEngine())
        assert (finished.status, finished.version) == ("committed", 4)
        run_batch(pipeline(), run_key="fourth", drain=True, engine=RowsEngine())
        assert verify(pipeline()).violations == []
        assert visible(location) == Counter(range(16))
        assert open_log(str(location / "log")).view().counts["quarantined"] == 2
