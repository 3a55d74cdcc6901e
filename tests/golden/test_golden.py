"""Logs of format 1 read today as they read when they were written; each fault is found and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_streamsem import open_log, verify
from airflow_provider_streamsem.errors import LogDamagedError, NewerFormatError, StreamsemError
from tests.golden.make_v1 import LOGS, ROOT

LOCATIONS = sorted(path for path in ROOT.iterdir() if path.is_dir())


def test_every_golden_log_is_committed() -> None:
    assert [location.name for location in LOCATIONS] == sorted(make.__name__ for make in LOGS)


@pytest.mark.parametrize("make", LOGS, ids=lambda make: make.__name__)
def test_format_1_is_still_written_byte_for_byte(make: object) -> None:
    location = ROOT / make.__name__ / "log"  # type: ignore[attr-defined]
    stored = {str(path.relative_to(location)): path.read_bytes() for path in location.rglob("*.json")}
    assert make() == stored  # type: ignore[operator]


@pytest.mark.parametrize("location", LOCATIONS, ids=lambda location: location.name)
def test_verify_finds_the_fault_and_names_it(location: Path) -> None:
    verdict = verify(str(location / "log"), files=False)
    found = [[finding.invariant, finding.version] for finding in verdict.findings]
    assert found == json.loads((location / "expect.json").read_text())["findings"]


@pytest.mark.parametrize("name", ["outcome_of_1_edited", "outcome_of_1_missing", "plan_of_3_torn"])
def test_reader_that_needs_a_damaged_entry_refuses(name: str) -> None:
    opened = open_log(str(ROOT / name / "log"))
    with pytest.raises(StreamsemError):
        assert [opened.files(), *opened.versions()]


def test_log_of_a_newer_format_is_refused_and_says_upgrade() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        open_log(str(ROOT / "outcome_of_3_in_a_newer_format" / "log")).files()


def test_clean_log_gives_its_files() -> None:
    opened = open_log(str(ROOT / "clean" / "log"))
    assert [(f.version, f.file.key, f.file.rows) for f in opened.view(since=1).files] == [
        (v, f"data/{v}/a/part.parquet", 2) for v in (2, 3)
    ]
    with pytest.raises(LogDamagedError, match="mark"):  # its dataset was not kept
        opened.files()
