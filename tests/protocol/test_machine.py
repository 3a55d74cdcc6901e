"""The tables are complete and are what PROTOCOL.md prints; a create ends only by an answer or a read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.protocol.machine import (
    CREATE,
    RECOVERY,
    Created,
    CreateState,
    Creation,
    Event,
    Exists,
    Found,
    Get,
    Listed,
    Missing,
    Procedure,
    Put,
    Step,
    Unknown,
    create,
    get,
    list_keys,
)

PROTOCOL = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text()
MINE = b"mine"


def drive(procedure: Procedure[object], *events: Event) -> object:
    """Send events; returns the result, or the requests made so far where it wants more."""
    requests = [next(procedure)]
    for event in events:
        try:
            requests.append(procedure.send(event))
        except StopIteration as stop:
            return stop.value
    return requests


def test_the_table_of_creates_is_the_one_in_the_protocol() -> None:
    printed = {}
    for state, answer, after in re.findall(r"^\| (SENT|READING) \| ([a-z]+)[^|]*\| ([A-Z]+)", PROTOCOL, re.MULTILINE):
        printed[CreateState[state], {"found": ""}.get(answer, answer)] = CreateState[after]
    for state, answer, after in re.findall(r"^\| (READING) \| found, (\w+)[^|]*\| ([A-Z]+)", PROTOCOL, re.MULTILINE):
        printed[CreateState[state], answer] = CreateState[after]
    printed.pop((CreateState.READING, ""), None)
    assert printed == CREATE


def test_table_of_recovery_equals_the_table_of_the_protocol() -> None:
    printed = {}
    words = ("no target", "below target", "target reached")
    for result, *steps in re.findall(r"^  \| (commit|abort) \| (\w+) \| (\w+) \| (\w+) \|$", PROTOCOL, re.MULTILINE):
        printed |= {(result, word): Step(step) for word, step in zip(words, steps, strict=True)}
    assert printed == RECOVERY


def test_create_that_was_answered_created_is_mine_and_first() -> None:
    assert drive(create("k", MINE), Created()) == Creation(MINE, mine=True, first=True)


def test_create_that_met_its_own_bytes_is_mine_but_not_first() -> None:
    assert drive(create("k", MINE), Unknown(), Exists(), Found(MINE)) == Creation(MINE, mine=True, first=False)


def test_create_that_met_other_bytes_is_lost() -> None:
    assert drive(create("k", MINE), Exists(), Found(b"theirs")) == Creation(b"theirs", mine=False, first=False)


def test_W6_unknown_answers_send_the_same_bytes_again() -> None:
    assert drive(create("k", MINE), Unknown(), Unknown()) == [Put("k", MINE)] * 3


def test_W6_missing_after_exists_concludes_nothing() -> None:
    assert drive(create("k", MINE), Exists(), Unknown(), Missing()) == [
        Put("k", MINE),
        Get("k"),
        Get("k"),
        Put("k", MINE),
    ]


def test_reads_repeat_until_answered() -> None:
    assert drive(get("k"), Unknown(), Found(b"x")) == b"x"
    assert drive(get("k"), Missing()) is None
    assert drive(list_keys("p", 2), Unknown(), Listed(("a",))) == ("a",)


@given(
    st.lists(st.sampled_from([Created(), Exists(), Unknown(), Missing(), Found(MINE), Found(b"theirs")]), max_size=12)
)
def test_create_never_ends_without_proof(events: list[Event]) -> None:
    """Whatever answers come, as far as they fit the request: it ends by *created* or by bytes that were read, and says which."""
    procedure = create("k", MINE)
    request = next(procedure)
    for event in events:
        fits = (Created, Exists, Unknown) if isinstance(request, Put) else (Found, Missing, Unknown)
        if not isinstance(event, fits):
            continue
        try:
            request = procedure.send(event)
        except StopIteration as stop:
            ended: Creation = stop.value
            break
    else:
        return
    assert isinstance(event, (Created, Found))
    assert ended.data == (event.data if isinstance(event, Found) else MINE)
    assert ended.mine == (ended.data == MINE)


def test_answer_that_fits_no_state_is_refused() -> None:
    with pytest.raises(KeyError):
        drive(create("k", MINE), Missing())
