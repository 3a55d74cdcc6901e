"""Each law of monoids is checked: a monoid that breaks one of them is reported."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.laws import check_monoid, laws
from airflow_provider_streamsem.transforms.monoids import Monoid, Top
from airflow_provider_streamsem.transforms.snapshot import as_text

ROWS = [{"word": "a"}, {"word": "bcd"}, {"word": "ef"}, {"word": "ghi"}]


class Longest(Monoid):
    """The longest word. Of several, the first in alphabetical order."""

    type = "string"

    def identity(self) -> Any:
        return ""

    def of(self, rows: pd.DataFrame) -> Any:
        return min(rows["word"], key=lambda word: (-len(word), word))

    def combine(self, left: Any, right: Any) -> Any:
        return min(left, right, key=lambda word: (-len(word), word))


class WrongIdentity(Longest):
    def identity(self) -> Any:
        return "no word"


class FirstOfEqualLength(Longest):
    def combine(self, left: Any, right: Any) -> Any:
        return right if len(right) > len(left) else left


class Mean(Monoid):
    """The mean of two means is not the mean of all values."""

    type = "double"

    def identity(self) -> Any:
        return None

    def of(self, rows: pd.DataFrame) -> Any:
        return float(rows["word"].str.len().mean())

    def combine(self, left: Any, right: Any) -> Any:
        return right if left is None else left if right is None else (left + right) / 2


class Changing(Top):
    def combine(self, left: Any, right: Any) -> Any:
        left.extend(right)
        left.sort(reverse=True)
        del left[self.k :]
        return left


class LastRow(Longest):
    def of(self, rows: pd.DataFrame) -> Any:
        return rows["word"].iloc[-1]


class NotJson(Longest):
    def serialize(self, partial: Any) -> str:
        return super().serialize(partial[:1])


def broken(monoid: Monoid) -> set[str]:
    return {law.name for law in laws(monoid, ROWS) if not law.holds}


@pytest.mark.parametrize("monoid", [Longest(), Top("word", 2, "array<string>")], ids=str)
def test_monoid_that_keeps_the_laws_passes(monoid: Monoid) -> None:
    check_monoid(monoid, ROWS)


@pytest.mark.parametrize(
    ("monoid", "law"),
    [
        (WrongIdentity(), "combine(identity, a) = a = combine(a, identity)"),
        (Mean(), "combine(combine(a, b), c) = combine(a, combine(b, c))"),
        (FirstOfEqualLength(), "combine(a, b) = combine(b, a)"),
        (Changing("word", 2, "array<string>"), "combine(a, b) does not change a and b"),
        (Mean(), "of(rows + more rows) = combine(of(rows), of(more rows))"),
        (LastRow(), "of(rows in another order) = of(rows)"),
        (NotJson(), "deserialize(serialize(a)) = a"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Monoid) else None,
)
def test_broken_law_is_reported(monoid: Monoid, law: str) -> None:
    assert law in broken(monoid)
    with pytest.raises(AssertionError, match="breaks laws of monoids"):
        check_monoid(monoid, ROWS)


def test_laws_need_rows() -> None:
    with pytest.raises(InvalidError, match="at least two example rows"):
        laws(Longest(), ROWS[:1])


def test_state_of_numpy_numbers_is_stored_as_json_and_other_objects_are_refused() -> None:
    assert as_text({"n": np.int64(3), "x": np.float64(0.5)}) == '{"n": 3, "x": 0.5}'
    with pytest.raises(TypeError, match="contains a Decimal"):
        as_text({"price": Decimal("1.50")})


def test_error_of_a_monoid_is_the_counterexample_of_its_law() -> None:
    (law, *_) = laws(Top("missing", 2, "array<string>"), ROWS)
    assert law.counterexample == "KeyError: 'missing'"


def test_null_among_large_integers_breaks_no_law() -> None:
    check_monoid(Top("n", 2, "array<bigint>"), [{"n": 1}, {"n": None}, {"n": 2**53 + 1}])
