"""The writes of the package are those of the model."""

from __future__ import annotations

import json

import pytest

from airflow_provider_streamsem.protocol import keys
from tests.model import writes
from tests.model.configurations import SMALL


@pytest.mark.slow
def test_stored_writes_are_those_of_the_small_scopes() -> None:
    assert writes.of_model_in(SMALL) == writes.stored(), "python -m tests.model.writes"


def history(*, is_published: bool) -> list[tuple[str, bytes | None]]:
    """Return a log in which version 1 is planned after a commit with a sink outside the log."""
    outcome = {"result": "commit", "attempt_id": "a", "publish": ["t"]}
    entries: list[tuple[str, object]] = [
        (keys.plan(0), {"work": {"kind": "batch"}}),
        (keys.attempt(0, "a"), {}),
        (keys.outcome(0), outcome),
        (keys.receipts(0), {"sinks": {"t": {"result": "applied"}}}),
        (keys.plan(1), {"work": {"kind": "batch"}}),
    ]
    return [(key, json.dumps(entry).encode()) for key, entry in entries if is_published or key != keys.receipts(0)]


def test_writes_of_a_log_are_described_as_those_of_the_model() -> None:
    found = writes.of_history(history(is_published=True))
    assert found <= writes.stored()
    assert ("outcome", "batch", "commit", "staged") in found
    assert ("plan", "batch", "commit", "published") in found


def test_write_that_the_model_does_not_make_is_found() -> None:
    new = writes.of_history(history(is_published=False)) - writes.stored()
    assert new == {("plan", "batch", "commit", "pending")}
