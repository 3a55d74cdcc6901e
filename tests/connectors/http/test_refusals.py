"""Replies that refuse a record or the caller."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_streamsem.connectors.http.endpoint import CALLER_REJECTED
from airflow_provider_streamsem.errors import (
    PublishError,
)
from airflow_provider_streamsem.protocol.entries import Receipt
from tests.connectors.http.endpoints import Recorder
from tests.connectors.http.pushing_fixture import (
    CHOICES,
    check_guarantee,
    new_fixture,
    pushing,
    receipt,
)


@pytest.mark.parametrize("chunk_rows", [2, 100])
@pytest.mark.parametrize("reply", CALLER_REJECTED)
def test_rejected_caller_loses_no_record(reply: int, chunk_rows: int, tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, delivery="at_most_once", chunk_rows=chunk_rows)
    recorder.reply_to = lambda call: reply if call.ids == [3] else 200
    for run in ("a", "a", "b"):
        with pytest.raises(PublishError, match="rejects the caller"):
            fixture.run(run, pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    assert recorder.ids() == fixture.expected
    actual = receipt(fixture)
    assert (actual.result, actual.rows, actual.detail["refused"]) == ("applied", 6, 0)


def test_redirect_is_not_followed(tmp_path: Path, recorder: Recorder) -> None:
    recorder.reply_to = lambda call: 307 if call.path == "/effects" else 200
    for name, choice in CHOICES.items():
        fixture = new_fixture(tmp_path / name)
        with pytest.raises(PublishError):
            fixture.run("a", pipeline=pushing(fixture, recorder, **choice))
    assert {call.path for call in recorder.received} == {"/effects"}
    assert recorder.calls == []


def test_refused_record_blocks_the_pipeline_until_the_endpoint_accepts_it(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    recorder.reply_to = lambda call: 422 if call.ids == [3] else 200
    for run in ("a", "b"):
        with pytest.raises(PublishError, match=r"chunk=1, record=1, status=422.*streamsem skip"):
            fixture.run(run, pipeline=pipeline)
    assert fixture.opened().log.receipts(0) is None
    recorder.reply_to = lambda call: 200
    fixture.run("b", pipeline=pipeline)
    check_guarantee("at_least_once", fixture, recorder, "fixed")


@pytest.mark.parametrize("choice", ["at_least_once", "at_most_once"])
def test_refused_record_is_counted_and_skipped_with_on_refusal_record(
    choice: str, tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    recorder.reply_to = lambda call: 400 if call.ids[0] in (2, 3, 4) else 200
    fixture.run("a", pipeline=pushing(fixture, recorder, delivery=choice, on_refusal="record"))
    assert recorder.ids() == Counter([0, 1, 5])
    assert receipt(fixture) == Receipt(
        result="applied", rows=3, detail={"chunks": 3, "refused": 3, "unknown": 0, "skipped": 0}
    )


def test_refused_credentials_are_never_counted_as_refused_records(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, on_refusal="record")
    recorder.reply_to = lambda call: 401
    with pytest.raises(PublishError, match="status=401"):
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    check_guarantee("at_least_once", fixture, recorder, "after 401")
