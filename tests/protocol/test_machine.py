"""The state machines equal the tables of PROTOCOL.md, and a create ends only with proof."""

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
    Put,
    Step,
    Unknown,
    create,
    get,
    list_keys,
)
from tests.protocol.procedures import drive

PROTOCOL = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text()
MINE = b"mine"


def test_table_of_create_equals_the_table_of_the_protocol() -> None:
    printed = {}
    for state, reply, after in re.findall(r"^\| (SENT|READING) \| ([a-z]+)[^|]*\| ([A-Z]+)", PROTOCOL, re.MULTILINE):
        printed[CreateState[state], {"found": ""}.get(reply, reply)] = CreateState[after]
    for state, reply, after in re.findall(r"^\| (READING) \| found, (\w+)[^|]*\| ([A-Z]+)", PROTOCOL, re.MULTILINE):
        printed[CreateState[state], reply] = CreateState[after]
    printed.pop((CreateState.READING, ""), None)
    assert printed == CREATE


def test_table_of_recovery_equals_the_table_of_the_protocol() -> None:
    printed = {}
    words = ("no target", "below target", "target reached")
    for result, *steps in re.findall(r"^  \| (commit|abort) \| (\w+) \| (\w+) \| (\w+) \|$", PROTOCOL, re.MULTILINE):
        printed |= {(result, word): Step(step) for word, step in zip(words, steps, strict=True)}
    assert printed == RECOVERY


def test_create_with_the_reply_created_is_won_by_the_first_request() -> None:
    assert drive(create("k", MINE), Created()) == Creation(MINE, mine=True, first=True)


def test_create_that_reads_its_own_bytes_is_won_but_not_by_the_first_request() -> None:
    assert drive(create("k", MINE), Unknown(), Exists(), Found(MINE)) == Creation(MINE, mine=True, first=False)


def test_create_that_reads_other_bytes_is_lost() -> None:
    assert drive(create("k", MINE), Exists(), Found(b"theirs")) == Creation(b"theirs", mine=False, first=False)


def test_W6_same_bytes_are_sent_again_after_an_unknown_reply() -> None:
    assert drive(create("k", MINE), Unknown(), Unknown()) == [Put("k", MINE)] * 3


def test_W6_create_is_sent_again_if_the_object_is_missing_after_the_reply_exists() -> None:
    assert drive(create("k", MINE), Exists(), Unknown(), Missing()) == [
        Put("k", MINE),
        Get("k"),
        Get("k"),
        Put("k", MINE),
    ]


def test_reads_are_repeated_until_they_have_a_reply() -> None:
    assert drive(get("k"), Unknown(), Found(b"x")) == b"x"
    assert drive(get("k"), Missing()) is None
    assert drive(list_keys("p", 2), Unknown(), Listed(("a",))) == ("a",)


@given(
    st.lists(st.sampled_from([Created(), Exists(), Unknown(), Missing(), Found(MINE), Found(b"theirs")]), max_size=12)
)
def test_create_ends_only_after_it_knows_the_stored_bytes(events: list[Event]) -> None:
    """For any sequence of replies, the create ends only after *created*, or after it has read the object. It returns which of them happened."""
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


def test_reply_that_no_state_expects_is_refused() -> None:
    with pytest.raises(KeyError):
        drive(create("k", MINE), Missing())
