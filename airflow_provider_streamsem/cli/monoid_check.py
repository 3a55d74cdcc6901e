"""The checks of ``streamsem check-monoid``: one for each law, with the example rows of a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from airflow_provider_streamsem.commitlog.doctor import Check
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.laws import laws
from airflow_provider_streamsem.transforms.monoids import Monoid


def checks(name: str, path: str) -> Iterator[Check]:
    """
    Test the laws of a monoid, and yield one check for each law.

    :param name: ``package.module:NAME`` of a :class:`Monoid` object
    :param path: a file with one JSON object per line: the example rows
    :raises InvalidError: there is no such monoid or file, the file is not JSON Lines or has fewer than two rows, or pandas is not installed
    """
    if find_spec("pandas") is None:
        raise InvalidError("pandas is not installed").advising("run `pip install pandas`.")
    monoid, rows = _monoid(name), _rows(path)
    for law in laws(monoid, rows):
        yield Check(name=law.name, passed=law.holds, observed=law.counterexample or f"{len(rows)} rows")


def _monoid(name: str) -> Monoid:
    module, _, variable = name.partition(":")
    try:
        value: Any = getattr(import_module(module), variable)
    except Exception as error:  # the module of the user may raise any error
        summary = "the monoid cannot be imported"
        reason = f"{type(error).__name__}: {error}"
        raise InvalidError(summary, given=name, reason=reason, accepted="package.module:NAME").advising(
            "add the directory of the module to PYTHONPATH, or correct the name or the module."
        ) from error
    if not isinstance(value, Monoid):
        summary = "the name does not refer to a Monoid object"
        raise InvalidError(summary, given=name, type=type(value).__name__).advising(
            'name a variable with an object, such as LONGEST = Longest("word"). Functions of Spark need no check.'
        )
    return value


def _rows(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
    except OSError as error:
        summary = "the file with the example rows cannot be read"
        raise InvalidError(summary, path=path, reason=os.strerror(error.errno or 0)).advising(
            "correct the path of the file."
        ) from error
    except ValueError as error:
        summary = "the file with the example rows is not JSON Lines"
        raise InvalidError(summary, path=path).advising("write one JSON object per line.") from error
    if not all(isinstance(row, dict) for row in rows):
        summary = "each line of the file with the example rows must be a JSON object"
        raise InvalidError(summary, path=path).advising("write one JSON object per line.")
    return rows
