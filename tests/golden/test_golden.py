"""The stored logs of format 1 are read as by the release that wrote them, and ``verify`` detects each fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_streamsem import open_log, verify
from airflow_provider_streamsem.errors import LogDamagedError, NewerFormatError, StreamsemError
from tests.golden.make_v1 import LOGS, ROOT

LOCATIONS = sorted(path for path in ROOT.iterdir() if path.is_dir())


def test_every_golden_log_is_stored() -> None:
    assert [location.name for location in LOCATIONS] == sorted(make.__name__ for make in LOGS)


@pytest.mark.parametrize("make", LOGS, ids=lambda make: make.__name__)
def test_format_1_is_written_unchanged_byte_for_byte(make: object) -> None:
    location = ROOT / make.__name__ / "log"  # type: ignore[attr-defined]
    stored = {str(path.relative_to(location)): path.read_bytes() for path in location.rglob("*.json")}
    assert make() == stored  # type: ignore[operator]


@pytest.mark.parametrize("location", LOCATIONS, ids=lambda location: location.name)
def test_verify_reports_the_fault(location: Path) -> None:
    verdict = verify(str(location / "log"), files=False)
    violations = [[finding.invariant, finding.version] for finding in verdict.violations]
    assert violations == json.loads((location / "expect.json").read_text())["violations"]


@pytest.mark.parametrize("name", ["outcome_of_1_edited", "outcome_of_1_missing", "plan_of_3_torn"])
def test_reading_a_damaged_entry_raises_an_error(name: str) -> None:
    opened = open_log(str(ROOT / name / "log"))
    with pytest.raises(StreamsemError):
        assert [opened.files(), *opened.versions()]


def test_log_of_a_newer_format_is_refused_with_the_advice_to_upgrade() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        open_log(str(ROOT / "outcome_of_3_in_a_newer_format" / "log")).files()


def test_files_of_a_clean_log_are_listed() -> None:
    opened = open_log(str(ROOT / "clean" / "log"))
    assert [(f.version, f.file.key, f.file.rows) for f in opened.view(since=1).files] == [
        (v, f"data/{v}/a/part.parquet", 2) for v in (2, 3)
    ]
    with pytest.raises(LogDamagedError, match="mark"):  # its dataset is not stored
        opened.files()
