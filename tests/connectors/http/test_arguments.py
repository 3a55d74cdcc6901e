"""The arguments of the sink, and the guarantee that they give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import guarantee
from airflow_provider_streamsem.connectors.http.operations import OPERATIONS
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.errors import (
    ConflictError,
    InvalidError,
)
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from tests.connectors.http.endpoints import Recorder
from tests.connectors.http.pushing_fixture import (
    CHOICES,
    new_fixture,
    pushing,
)
from tests.pipeline_fixture import PipelineFixture


def test_guarantee_with_record_id_states_that_records_with_equal_ids_are_merged(
    tmp_path: Path, recorder: Recorder
) -> None:
    reasons_given = guarantee(pushing(new_fixture(tmp_path), recorder, record_id=["{a}", "b"], idempotent=True)).reasons
    assert any("records with equal {a}, b have the same key" in reason for reason in reasons_given)
    assert not any(
        "have the same key" in reason for reason in guarantee(pushing(new_fixture(tmp_path), recorder)).reasons
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_guarantee_of_an_operation_matches_the_operations_table(
    operation: str, tmp_path: Path, recorder: Recorder
) -> None:
    pipeline = pushing(new_fixture(tmp_path), recorder, operation=operation)
    if OPERATIONS[operation].idempotent:
        assert pipeline.replace(require="effectively_once")
        return
    with pytest.raises(InvalidError, match="idempotent=True") as refused:
        pipeline.replace(require="effectively_once")
    assert OPERATIONS[operation].instead in str(refused.value).replace('\\"', '"')


def test_pipelines_of_the_docs_page_are_accepted_and_the_mail_example_is_at_most_once() -> None:
    page = (Path(__file__).parents[3] / "docs" / "connectors" / "http-sink.md").read_text()
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "http-sink.md", "exec"), namespace)
    assert guarantee(namespace["MAILS"]).label == "at_most_once"
    for more in ("exactly_once", "effectively_once", "at_least_once"):
        with pytest.raises(InvalidError, match="weaker than it requires"):
            namespace["MAILS"].replace(require=more)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of url and conn_id"), ({"url": "http://h", "conn_id": "c"}, "exactly one"), ({"url": "http://u:pw-x@h/"}, "must not contain credentials"),
    ({"url": "http://h:port/x?token=pw-x"}, "invalid host or port"), ({"url": "http://h", "endpoint": "x?token=pw-x"}, "endpoint needs conn_id"),
    ({"url": "ftp://h"}, "url"), ({"url": "http://h", "endpoint": "x"}, "endpoint needs conn_id"), ({"url": "http://h", "method": "GET"}, "method"),
    ({"url": "http://h", "delivery": "exactly_once"}, "delivery"), ({"url": "http://h", "delivery": "effectively_once"}, "delivery"),
    ({"url": "http://h", "delivery": "at_most_once", "idempotent": True}, "repeats no call"), ({"url": "http://h", "idempotent": 1}, "idempotent"),
    ({"url": "http://h", "delivery": "at_most_once", "on_refusal": "fail"}, "on_refusal"), ({"url": "http://h", "key_header": "a b"}, "key_header"),
    ({"url": "http://h", "record_id": "id"}, "record_id"), ({"url": "http://h", "record_id": ["id"], "records_per_call": 2}, "one record"),
    ({"url": "http://h", "max_per_s": 0}, "max_per_s"), ({"url": "http://h", "max_wait_s": -1}, "max_wait_s"),
    ({"url": "http://h", "chunk_rows": 0}, "chunk_rows"), ({"url": "http://h", "records_per_call": True}, "records_per_call"), ({"url": "http://h", "timeout_s": 0}, "timeout_s"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_invalid_argument_is_reported_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message) as refused:
        HttpSink("/staged", **arguments)
    assert "pw-x" not in str(refused.value)


@pytest.mark.parametrize("choice", CHOICES)
def test_label_and_spec_match_the_delivery_choice(choice: str, tmp_path: Path) -> None:
    fixture, recorder = PipelineFixture(tmp_path), Recorder(port=1)
    pipeline = pushing(fixture, recorder, **CHOICES[choice])
    label = guarantee(pipeline)
    assert label.label == choice
    promise = {
        "at_least_once": "may repeat.*idempotent=True", "at_most_once": "no call is performed twice.*unknown", "effectively_once": "promises.*cannot check",
    }  # fmt: skip
    assert re.search(promise[choice], " ".join(label.reasons))
    spec = pipeline.to_json()
    again = from_json({key: value for key, value in spec.items() if key != "transform"})
    assert again.sinks == pipeline.sinks
    with pytest.raises(InvalidError, match="weaker than it requires"):
        pipeline.replace(require="exactly_once")


def test_options_that_define_chunks_and_keys_cannot_change_on_an_existing_log(
    tmp_path: Path, recorder: Recorder
) -> None:
    fixture = new_fixture(tmp_path)
    fixture.run("a", pipeline=pushing(fixture, recorder))
    fixture.run("a", pipeline=pushing(fixture, recorder, idempotent=True, on_refusal="record", timeout_s=5))
    for change in ({"chunk_rows": 3}, {"delivery": "at_most_once"}, {"record_id": ["id"]}, {"records_per_call": 2}):
        with pytest.raises(ConflictError):
            fixture.run("b", pipeline=pushing(fixture, recorder, **change))


def test_reprocessing_is_refused_before_anything_is_written(tmp_path: Path, recorder: Recorder) -> None:
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder)
    fixture.run("a", pipeline=pipeline)
    with pytest.raises(InvalidError):
        fixture.run("r", pipeline=pipeline, reprocessed=0)
    assert recorder.ids() == fixture.expected
