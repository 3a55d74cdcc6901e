"""Python workers of Spark keep the directories of Spark's archives, and read those of all others again."""

from __future__ import annotations

import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from airflow_provider_streamsem.connectors.python_worker import keep_import_caches


@pytest.mark.parametrize(
    ("archive", "inside", "is_kept"),
    [
        ("spark-core_2.13-4.1.1.jar", "", True),
        ("pyspark.zip", "", True),
        ("pyspark.zip", "/pyspark/sql", True),
        ("py4j-0.10.9.9-src.zip", "", True),
        ("users.zip", "", False),
        ("spark-core_2.13-4.1.1.jar.zip", "", False),
    ],
)
def test_only_directories_of_sparks_archives_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: str, inside: str, is_kept: bool
) -> None:
    path = tmp_path / archive
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("pyspark/sql/a.py", "")
    finder = zipimport.zipimporter(f"{path}{inside}")
    monkeypatch.setitem(sys.path_importer_cache, f"{path}{inside}", finder)
    keep_import_caches()
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("pyspark/sql/new.py", "")
    finder.invalidate_caches()
    name = "new" if inside else "pyspark/sql/new"
    assert (finder.find_spec(name) is None) == is_kept
