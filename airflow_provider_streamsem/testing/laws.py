"""Tests the laws of a monoid in Python with example rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.transforms.monoids import Monoid

_MOST_PARTS = 6


@dataclass(frozen=True, slots=True)
class Law:
    """
    A law of monoids, and whether it holds for the example rows.

    :param name: the law as an equation
    :param counterexample: partial values for which it does not hold, or the error of the monoid, as text; empty if it holds
    """

    name: str
    counterexample: str = ""

    @property
    def holds(self) -> bool:
        """Whether no counterexample was found."""
        return not self.counterexample


def laws(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> list[Law]:
    """
    Test each law for all combinations of these partial values: the identity, that of all rows, and those of each of the first six rows.

    :param rows: example rows with the columns that the monoid reads, at least two. Put the rows that differ most first. Include nulls if the records may have
        them. Write numbers of a floating-point column as floats, such as ``1.0``
    :raises InvalidError: there are fewer than two rows
    """
    if len(rows) < 2:
        summary = "the laws of a monoid need at least two example rows"
        raise InvalidError(summary, given=len(rows)).advising("add example rows.")
    return [
        _law("combine(identity, a) = a = combine(a, identity)", _identity(monoid, rows)),
        _law("combine(combine(a, b), c) = combine(a, combine(b, c))", _associative(monoid, rows)),
        _law("combine(a, b) = combine(b, a)", _commutative(monoid, rows)),
        _law("combine(a, b) does not change a and b", _pure(monoid, rows)),
        _law("of(rows + more rows) = combine(of(rows), of(more rows))", _homomorphic(monoid, rows)),
        _law("of(rows in another order) = of(rows)", _unordered(monoid, rows)),
        _law("deserialize(serialize(a)) = a", _stored(monoid, rows)),
    ]


def check_monoid(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> None:
    """
    Check the laws of a monoid in a test.

    :param rows: as in :func:`laws`
    :raises AssertionError: a law does not hold; the message names each such law, with partial values
    """
    broken = [f"{law.name}: {law.counterexample}" for law in laws(monoid, rows) if not law.holds]
    if broken:
        raise AssertionError(f"{monoid} breaks laws of monoids:\n" + "\n".join(broken))


def _law(name: str, counterexamples: Iterator[str]) -> Law:
    try:
        return Law(name, next(counterexamples, ""))
    except Exception as error:  # an error of the monoid
        return Law(name, f"{type(error).__name__}: {error}")


def _partials(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return new partial values: the identity, the partial value of all rows, and the partial values of single rows."""
    singles = [monoid.of(_frame([row])) for row in rows[:_MOST_PARTS]]
    return [monoid.identity(), monoid.of(_frame(rows)), *singles]


def _identity(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for a in _partials(monoid, rows):
        for combined in (monoid.combine(monoid.identity(), a), monoid.combine(a, monoid.identity())):
            if not _equal(monoid, combined, a):
                yield f"a={a!r} gives {combined!r}"


def _associative(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for a, b, c in product(_partials(monoid, rows), repeat=3):
        left, right = monoid.combine(monoid.combine(a, b), c), monoid.combine(a, monoid.combine(b, c))
        if not _equal(monoid, left, right):
            yield f"a={a!r}, b={b!r}, c={c!r} give {left!r} and {right!r}"


def _commutative(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for a, b in product(_partials(monoid, rows), repeat=2):
        left, right = monoid.combine(a, b), monoid.combine(b, a)
        if not _equal(monoid, left, right):
            yield f"a={a!r}, b={b!r} give {left!r} and {right!r}"


def _pure(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for a, b in product(_partials(monoid, rows), repeat=2):
        before = monoid.serialize(a), monoid.serialize(b)
        monoid.combine(a, b)
        after = monoid.serialize(a), monoid.serialize(b)
        if before != after:
            yield f"a, b were {before} and became {after}"


def _homomorphic(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    whole = monoid.of(_frame(rows))
    for cut in range(1, len(rows)):
        parts = monoid.combine(monoid.of(_frame(rows[:cut])), monoid.of(_frame(rows[cut:])))
        if not _equal(monoid, parts, whole):
            yield f"{len(rows)} rows give {whole!r}, and cut after row {cut} {parts!r}"


def _unordered(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    forwards, backwards = monoid.of(_frame(rows)), monoid.of(_frame(rows[::-1]))
    if not _equal(monoid, forwards, backwards):
        yield f"the rows give {forwards!r}, and backwards {backwards!r}"


def _stored(monoid: Monoid, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for a in _partials(monoid, rows):
        text = monoid.serialize(a)
        restored = monoid.deserialize(text)
        if not isinstance(text, str) or not _equal(monoid, restored, a):
            yield f"a={a!r} is stored as {text!r} and read as {restored!r}"


def _equal(monoid: Monoid, left: Any, right: Any) -> bool:
    try:
        return bool(left == right) and bool(monoid.result(left) == monoid.result(right))
    except ValueError:  # arrays have no single truth value
        return monoid.serialize(left) == monoid.serialize(right)


def _frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows with the pandas types that the rows of a batch have."""
    import pandas

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pandas.DataFrame({name: pandas.Series(values, dtype=_type(values)) for name, values in columns.items()})


def _type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int}:
        return "Int64"
    if kinds == {bool}:
        return "boolean"
    return "float64" if kinds and kinds <= {int, float} else "object"
