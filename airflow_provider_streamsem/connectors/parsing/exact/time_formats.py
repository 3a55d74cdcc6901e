"""
Parses dates and times in a format of the user, which is a pattern of Spark. Executors run this module.

A letter has the meaning that Spark's documentation gives it in "Datetime Patterns for Formatting and Parsing". Fields that a pattern does not have are those of
1970-01-01 00:00.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_streamsem.connectors.parsing.exact.values import days_of, in_zone, micros_of, offset_of, zone_of

_PIECE = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([\[\]])|([^A-Za-z'\[\]]+)")
_MICROS = 1_000_000
_FIELDS = {
    "y": "year",
    "M": "month",
    "L": "month",
    "d": "day",
    "D": "day_of_year",
    "H": "hour",
    "m": "minute",
    "s": "second",
}
LETTERS = frozenset("yMLdDHhKkmsSaXxZV")
"""The letters of a pattern that can be parsed."""


@dataclass(frozen=True)
class TimeFormat:
    """
    The format of a date (days since 1970) or time (microseconds since 1970).

    :param zone: the time zone of a text without a zone; ``None``: the type has no zone
    :param texts: the names of months, in upper case, by the letters ``MMM`` and ``MMMM``, and of the halves of a day by ``a``
    """

    pattern: str
    is_date: bool = False
    zone: str | None = None
    texts: Mapping[str, Sequence[str]] | None = None

    def parser(self) -> Callable[[str], int | None]:
        """Return the function. A pattern that is not valid, or cannot be parsed, raises ``ValueError``."""
        try:
            expression = re.compile("".join(self._expressions()), re.IGNORECASE | re.DOTALL)
        except re.error as error:
            raise ValueError("brackets are not balanced") from error
        zone = None if self.zone is None else zone_of(self.zone)

        def value(text: str) -> int | None:
            found = expression.fullmatch(text)
            if found is None:
                return None
            parts = {name: part for name, part in found.groupdict().items() if part is not None}
            day = self._day(parts)
            local = None if day is None else self._local(day, parts)
            if local is None or self.is_date:
                return local if local is None else day
            if zone is None:
                return local if "zone" not in parts else None
            return _at_zone(local, parts["zone"]) if "zone" in parts else in_zone(local, zone)

        return value

    def _expressions(self) -> Iterator[str]:
        at = 0
        pieces = []
        while at < len(self.pattern):
            piece = _PIECE.match(self.pattern, at)
            if piece is None:
                raise ValueError("a quote is not closed")
            pieces.append(piece)
            at = piece.end()
        seen: set[str] = set()
        for n, piece in enumerate(pieces):
            quoted, letter, bracket, other = piece.groups()
            if quoted is not None:
                yield re.escape(quoted.replace("''", "'") or "'")
            elif letter is not None:
                is_adjacent = n + 1 < len(pieces) and pieces[n + 1][2] is not None
                yield self._letter(letter, len(piece[0]), seen, is_adjacent=is_adjacent)
            elif bracket is not None:
                yield "(?:" if bracket == "[" else ")?"
            else:
                yield re.escape(other)

    def _letter(self, letter: str, count: int, seen: set[str], *, is_adjacent: bool) -> str:
        if letter not in LETTERS:
            raise ValueError(f"the letter {letter} cannot be parsed")
        if letter in "ML" and count > 2:
            return self._group("month_name", self._alternatives("M" * count), seen)
        if letter == "a":
            return self._group("half", self._alternatives("a"), seen)
        if letter in "XxZV":
            return self._group("zone", _zone_expression(letter, count), seen)
        if letter == "S":
            return self._group("fraction", rf"[0-9]{{1,{min(count, 9)}}}", seen)
        name = _FIELDS.get(letter, f"hour_{letter}")
        if letter == "y" and count == 2:
            return self._group("short_year", "[0-9]{2}", seen)
        longest = max(count, 4) if letter == "y" else count
        if count == 1 and letter != "y" and not is_adjacent:
            longest = 3 if letter == "D" else 2
        return self._group(name, rf"[0-9]{{{count},{longest}}}", seen)

    def _group(self, name: str, expression: str, seen: set[str]) -> str:
        if name in seen:
            raise ValueError(f"the pattern has the {name.replace('_', ' ')} twice")
        seen.add(name)
        return f"(?P<{name}>{expression})"

    def _alternatives(self, letters: str) -> str:
        names = (self.texts or {}).get(letters)
        if not names:
            raise ValueError(f"the letters {letters} cannot be parsed")
        return "|".join(sorted(map(re.escape, names), key=len, reverse=True))

    def _day(self, parts: Mapping[str, str]) -> int | None:
        year = int(parts.get("year", 1970))
        if "short_year" in parts:
            year = 2000 + int(parts["short_year"])
        if year > 9999:
            return None
        month = int(parts.get("month", 1))
        if "month_name" in parts:
            month = self._number("M", parts["month_name"])
        if "day_of_year" in parts:
            first, number = days_of(year, 1, 1), int(parts["day_of_year"])
            following = days_of(year + 1, 1, 1) if year < 9999 else (first or 0) + 365
            return (
                first + number - 1
                if first is not None and number > 0 and first + number - 1 < (following or 0)
                else None
            )
        return days_of(year, month, int(parts.get("day", 1)))

    def _number(self, letter: str, name: str) -> int:
        """Names are numbered from 1."""
        for letters, names in (self.texts or {}).items():
            upper = [each.upper() for each in names]
            if letters.startswith(letter) and name.upper() in upper:
                return upper.index(name.upper()) + 1
        raise AssertionError(name)

    def _local(self, day: int, parts: Mapping[str, str]) -> int | None:
        hour = int(parts.get("hour", 0))
        is_afternoon = "half" in parts and self._number("a", parts["half"]) == 2
        for letter, first, count in (("h", 1, 12), ("K", 0, 12), ("k", 1, 24)):
            value = parts.get(f"hour_{letter}")
            if value is not None:
                if not first <= int(value) < first + count:
                    return None
                hour = int(value) % count + (12 if is_afternoon and count == 12 else 0)
        fraction = parts.get("fraction", "").ljust(9, "0")[:6]
        return micros_of(day, hour, int(parts.get("minute", 0)), int(parts.get("second", 0)), int(fraction))


def _at_zone(local: int, name: str) -> int | None:
    offset = 0 if name.upper() == "Z" else offset_of(name)
    if offset is not None:
        return local - offset * _MICROS
    try:
        return in_zone(local, zone_of(name))
    except ValueError:
        return None


def _zone_expression(letter: str, count: int) -> str:
    if letter == "V":
        return r"[A-Za-z][A-Za-z0-9_+/-]*|[+-][0-9]{2}:[0-9]{2}"
    if letter == "Z":
        return r"[+-][0-9]{4}" if count < 4 else r"[+-][0-9]{2}:[0-9]{2}"
    digits = {1: "[0-9]{2}(?:[0-9]{2})?", 2: "[0-9]{4}", 3: "[0-9]{2}:[0-9]{2}"}.get(
        count, "[0-9]{2}:?[0-9]{2}(?::?[0-9]{2})?"
    )
    return (r"Z|" if letter == "X" else "") + rf"[+-]{digits}"
