"""The errors page equals its table, and a test covers each cause."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools import error_table
from tools.error_table import Row

TESTS = Path(__file__).parents[1]
ROWS = [row for rows in error_table.TABLES.values() for row in rows]


def test_page_equals_the_table() -> None:
    assert error_table.PAGE.read_text() == error_table.page(), "python -m tools.error_table"


@pytest.mark.parametrize("row", ROWS, ids=[row.test.partition("::")[2] for row in ROWS])
def test_named_test_of_a_cause_expects_its_error(row: Row) -> None:
    file, _, name = row.test.partition("::")
    text = (TESTS / file).read_text()
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    body = ast.get_source_segment(text, functions[name]) or ""
    called = [ast.get_source_segment(text, node) or "" for other, node in functions.items() if f"{other}(" in body]
    expected = row.error.__name__
    assert any(re.search(rf"raises\(\s*{expected}\b", part) for part in [body, *called]), expected
