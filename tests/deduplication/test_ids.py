"""Sets of ids have the results of plain Python sets, also if the first halves of different ids are equal."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.deduplication.ids import NO_IDS, Ids, first_of_equal, halves, in_order, union

# Few first and last bytes, so that ids repeat, and different ids have equal halves. The first bit is set in some, as in an unsigned number.
ID = st.builds(
    lambda first, last: bytes([first]) * 8 + bytes([last]) * 8, *(st.sampled_from([0, 1, 127, 128, 255]),) * 2
)
PASSED = st.lists(st.tuples(ID, st.integers(-5, 5)), max_size=40)


def made(passed: list[tuple[bytes, int]]) -> Ids:
    high, low = halves(b"".join(id for id, _ in passed))
    return in_order(high, low, np.array([at for _, at in passed], np.int64))


def listed(ids: Ids) -> list[tuple[bytes, int]]:
    return sorted(zip([bytes(id) for id in ids.to_arrow().to_pylist()], ids.at_ms.tolist(), strict=True))


@given(PASSED, PASSED)
def test_union_has_each_id_with_each_of_its_times(
    first: list[tuple[bytes, int]], second: list[tuple[bytes, int]]
) -> None:
    assert listed(union([made(first), NO_IDS, made(second)])) == sorted(first + second)


@given(PASSED, PASSED)
def test_equal_ids_of_two_sets_are_found_in_all_pairs(
    first: list[tuple[bytes, int]], second: list[tuple[bytes, int]]
) -> None:
    mine, theirs = made(first), made(second)
    pairs = mine.equal(theirs)
    found = [(mine.where(a), theirs.where(b)) for a, b in [([i], [j]) for i, j in zip(*pairs, strict=True)]]
    assert sorted((listed(a), listed(b)) for a, b in found) == sorted(
        ([x], [y]) for x in first for y in second if x[0] == y[0]
    )
    assert listed(mine.where(mine.are_in(theirs))) == sorted(x for x in first if x[0] in {id for id, _ in second})


@given(st.lists(ID, max_size=40))
def test_first_of_equal_ids_is_the_one_that_comes_first(ids: list[bytes]) -> None:
    positions = first_of_equal(*halves(b"".join(ids))).tolist()
    assert sorted(positions) == sorted(ids.index(id) for id in set(ids))
    assert [ids[n][:8] for n in positions] == sorted(ids[n][:8] for n in positions)
