"""Tests of ``verify --deep``: it finds ids that are visible more than once, and a source that cannot continue after the offsets of the log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import Dedup, FilesSink, Pipeline, open_log, run_batch
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.readers import row_checks
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.row_checks import check_rows, check_source, id_columns
from airflow_provider_streamsem.stores.local import LocalStore
from tests.pipeline_fixture import PipelineFixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class TwoSinks(PipelineFixture):
    def pipeline(self, **changes: Any) -> Pipeline:
        sinks = {name: FilesSink(path=str(self.root / name), format="parquet") for name in ("out", "copy")}
        return super().pipeline(**{"sinks": sinks, **changes})

    def batch(self, run_key: str, *ids: int | None, **changes: Any) -> None:
        source = self.root / "in"
        source.mkdir(exist_ok=True)
        lines = "".join(json.dumps({} if number is None else {"id": number}) + "\n" for number in ids)
        (source / f"{run_key}.json").write_text(lines)
        run_batch(self.pipeline(**changes), run_key=run_key, log=self.log())


@pytest.fixture
def make(tmp_path: Path, spark: Any) -> Callable[[str], TwoSinks]:
    def made(name: str) -> TwoSinks:
        root = tmp_path / name
        root.mkdir()
        return TwoSinks(root, store=LocalStore(str(root / "log")))

    return made


def test_ids_that_are_visible_more_than_once_are_found(make: Callable[[str], TwoSinks], spark: Any) -> None:
    fixture = make("repeated")
    fixture.batch("a", 1, 2, 3, None)
    fixture.batch("b", 4, 5, None)
    opened = open_log(str(fixture.root / "log"))
    assert list(check_rows(spark, opened, ["id"])) == []
    fixture.batch("c", 5, 6, 6)
    found = list(check_rows(spark, opened, ["id"]))
    assert [(violation.invariant, violation.version) for violation in found] == [("ids", 2), ("ids", 2)]
    assert "sink out: 2 ids are visible more than once, for example in versions 1 and 2, 2" in found[1].what
    assert "dedup" in found[0].do


def test_keys_of_dedup_are_the_ids(make: Callable[[str], TwoSinks], spark: Any) -> None:
    fixture = make("dedup")
    dedup = Dedup(keys=["id"], ttl_s=3_600)
    fixture.batch("a", 1, 2, dedup=dedup)
    fixture.batch("b", 2, 3, dedup=dedup)
    opened = open_log(str(fixture.root / "log"), pipeline=fixture.pipeline(dedup=dedup))
    assert list(check_rows(spark, opened, id_columns(opened, []))) == []


def test_check_without_known_ids_is_refused(make: Callable[[str], TwoSinks], spark: Any) -> None:
    fixture = make("unknown")
    fixture.batch("a", 1)
    opened = open_log(str(fixture.root / "log"))
    with pytest.raises(InvalidError, match="columns of the id are not known"):
        id_columns(opened, [])
    with pytest.raises(InvalidError, match="no files sink has the columns"):
        list(check_rows(spark, opened, ["other"]))


def test_source_that_cannot_continue_is_a_violation(
    make: Callable[[str], TwoSinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = make("source")
    fixture.batch("a", 1)
    pipeline = fixture.pipeline(log=str(fixture.root / "log"))
    assert list(check_source(pipeline)) == []
    found = replace(lag(pipeline), lag=-3)
    monkeypatch.setattr(row_checks, "lag", lambda _: found)
    (violation,) = check_source(pipeline)
    assert violation.what.startswith("the log is 3 files ahead of the source")

    def refuse(_: Pipeline) -> None:
        raise InvalidError("the topic does not exist")

    monkeypatch.setattr(row_checks, "lag", refuse)
    (violation,) = check_source(pipeline)
    assert (violation.invariant, violation.what, bool(violation.do)) == ("source", "the topic does not exist", True)


def test_source_that_does_not_respond_is_no_violation(make: Callable[[str], TwoSinks]) -> None:
    fixture = make("unavailable")
    fixture.batch("a", 1)
    pipeline = fixture.pipeline(log=str(fixture.root / "log"))
    shutil.rmtree(fixture.root / "in")
    with pytest.raises(UnavailableError):
        list(check_source(pipeline))


def test_command_shows_what_to_do_about_each_violation(
    make: Callable[[str], TwoSinks], capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = make("command")
    fixture.batch("a", 1, 1)
    log = str(fixture.root / "log")
    assert main(["verify", log, "--deep", "--ids", "id", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [violation["invariant"] for violation in document["violations"]] == ["ids", "ids"]
    next(iter((fixture.root / "out").rglob("*.parquet"))).unlink()
    assert main(["verify", log]) == 1
    assert "Do: restore the file from a copy, or compute its rows again: `streamsem reprocess PIPELINE.toml 0`" in (
        capsys.readouterr().out
    )
    assert main(["verify", log, "--ids", "id"]) == 2
    assert main(["verify", log, "--deep", "--log-only"]) == 2
