"""The page of guarantees is what the code computes, and each row names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import guarantee_matrix

ROOT = Path(__file__).parents[2]


def test_page_is_what_the_code_computes() -> None:
    assert guarantee_matrix.PAGE.read_text() == guarantee_matrix.page(), "python -m tools.guarantee_matrix"


NAMED = {
    **{f"source {name}": guarantee_matrix.SOURCE_PROOFS[name] for name in guarantee_matrix.SOURCES},
    **{f"sink {name}": guarantee_matrix.PROOFS[name] for name in guarantee_matrix.SINKS},
}


@pytest.mark.parametrize("part", NAMED)
def test_every_part_names_tests_that_are_there(part: str) -> None:
    assert NAMED[part]
    for proof in NAMED[part]:
        file, _, name = proof.partition("::")
        assert re.search(rf"def {name}\(", (ROOT / file).read_text()), proof


@pytest.mark.parametrize("name", [name for name in guarantee_matrix.SINKS if name != "files"])
def test_every_test_that_a_sink_names_is_of_that_sink(name: str) -> None:
    kind = type(guarantee_matrix.SINKS[name]).__name__
    for proof in guarantee_matrix.PROOFS[name]:
        file = proof.partition("::")[0]
        assert kind.removesuffix("Sink").lower() in file or kind in (ROOT / file).read_text(), proof
