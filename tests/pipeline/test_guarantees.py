"""The page of guarantees equals the computed matrix, and each row names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import guarantee_matrix

ROOT = Path(__file__).parents[2]


def test_page_equals_the_computed_matrix() -> None:
    assert guarantee_matrix.PAGE.read_text() == guarantee_matrix.page(), "python -m tools.guarantee_matrix"


TESTS_BY_PART = {
    **{f"source {name}": guarantee_matrix.SOURCE_PROOFS[name] for name in guarantee_matrix.SOURCES},
    **{f"sink {name}": guarantee_matrix.PROOFS[name] for name in guarantee_matrix.SINKS},
}


@pytest.mark.parametrize("part", TESTS_BY_PART)
def test_every_part_names_existing_tests(part: str) -> None:
    assert TESTS_BY_PART[part]
    for test_id in TESTS_BY_PART[part]:
        file, _, name = test_id.partition("::")
        assert re.search(rf"def {name}\(", (ROOT / file).read_text()), test_id


@pytest.mark.parametrize("name", [name for name in guarantee_matrix.SINKS if name != "files"])
def test_tests_named_by_a_sink_cover_this_sink(name: str) -> None:
    kind = type(guarantee_matrix.SINKS[name]).__name__
    for test_id in guarantee_matrix.PROOFS[name]:
        file = test_id.partition("::")[0]
        assert kind.removesuffix("Sink").lower() in file or kind in (ROOT / file).read_text(), test_id
