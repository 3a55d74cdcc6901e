"""Ranges have no holes or overlaps. Keys sort newest first and can be parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys, offsets

PARTITIONS = st.sampled_from(["files", "orders-0", "orders-1"])
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 1000), max_size=3)


@given(OFFSETS, OFFSETS)
def test_ranges_between_two_offsets_advance_one_to_the_other(start: dict[str, int], more: dict[str, int]) -> None:
    end = {p: start.get(p, 0) + n for p, n in more.items()}
    ranges = offsets.between(start, end)
    assert all(first < last for first, last in ranges.values())
    assert offsets.reached(offsets.advance(start, offsets.ends(ranges)), end)
    assert offsets.within(ranges, end)
    assert offsets.length(ranges) == sum(more.values())
    assert offsets.starts(ranges) == {p: start.get(p, 0) for p in ranges}


def test_target_below_the_offset_is_reached_and_gives_no_range() -> None:
    assert offsets.between({"a": 5}, {"a": 3}) == {}
    assert offsets.reached({"a": 5}, {"a": 3})
    assert not offsets.reached({}, {"a": 1})
    assert not offsets.within({"b": (0, 1)}, {"a": 9})


@given(st.integers(0, keys.N - 2))
def test_newer_versions_sort_first_and_an_outcome_before_its_plan(version: int) -> None:
    newest_first = [keys.outcome(version + 1), keys.plan(version + 1), keys.outcome(version), keys.plan(version)]
    assert sorted(newest_first) == newest_first
    assert [keys.parse_entry(key) for key in newest_first] == [
        (version + 1, "c"),
        (version + 1, "p"),
        (version, "c"),
        (version, "p"),
    ]


@given(st.integers(0, keys.N - 2), st.text(max_size=50))
def test_newer_pointers_sort_first_for_every_run_key(j: int, run_key: str) -> None:
    assert keys.pointer(run_key, j + 1) < keys.pointer(run_key, j)
    assert keys.parse_newest_first(keys.pointer(run_key, j)) == j
    assert keys.pointer(run_key, j).startswith(keys.run(run_key))


@pytest.mark.parametrize(
    "key",
    [
        "log/99999999/999999999999-1.p.json",
        "log/00000000/999999999999-0.p.json",
        "log/x",
        "pipeline.json",
        f"log/99999999/999999999999-{keys.N}.c.json",
    ],
)
def test_foreign_keys_are_not_entries(key: str) -> None:
    assert keys.parse_entry(key) is None


def test_foreign_keys_are_not_pointers() -> None:
    assert keys.parse_newest_first("discovered/x.json") is None
    assert keys.parse_newest_first("discovered/999999999999-7.json") is None


def test_positions_outside_the_log_are_refused() -> None:
    for number in (-1, keys.N):
        with pytest.raises(LogDamagedError, match="position"):
            keys.plan(number)


def test_other_keys_equal_those_of_the_protocol() -> None:
    assert keys.attempt(3, "a") == "attempts/3/a.json"
    assert keys.segment(1, 2) == "segments/1/2.json"
    assert keys.quarantine(3, "a", 4) == "quarantine/3/a/00004.jsonl"
    assert (keys.claim(3, "out", 4), keys.claim(3, "out", 4, 1)) == (
        "claims/3/out/00000004.json",
        "claims/3/out/00000004-1.json",
    )
    assert keys.effects(3, "out", 4) == "effects/3/out/00000004.json"
    assert (keys.data_prefix(3), keys.data_prefix(3, "a")) == ("data/3/", "data/3/a/")
    assert keys.attempt_of_data(f"data/3/{'0' * 32}/part-0.parquet") == (3, "0" * 32)
    assert keys.attempt_of_data("data/3/a/p=x/part-0.parquet") == (3, "a")
    for foreign_key in (
        "data/1101/0001/1010/file.parquet",
        "data/p=x/3/file",
        "data/3/file",
        "data/3//file",
        "log/3/a/b",
    ):
        assert keys.attempt_of_data(foreign_key) is None
    assert (keys.page("s"), keys.known("s")) == ("files/s.json", "known/s.json")
    assert (keys.spill("s"), keys.spec("s"), keys.doctor("d")) == ("spill/s.json", "specs/s.json", "doctor/d.json")


def test_key_of_a_spilled_field_is_distinguished_from_other_keys() -> None:
    sha256 = "0" * 64
    assert keys.is_spill(keys.spill(sha256))
    assert not any(map(keys.is_spill, (keys.spec(sha256), keys.plan(1), keys.PIPELINE)))
