"""The checker detects duplicated records, lost records and rows of aborted transactions."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow
import pyarrow.parquet
import pytest

from tests.chaos.expected import Expected
from tests.chaos.faults import FAULTS, draw, kinds
from tests.chaos.setting import Setting
from tests.chaos.subjects import SUBJECTS, subject_class
from tests.chaos.subjects.contract import VisibleRows
from tests.chaos.subjects.into_sinks import StreamsemIntoSinks
from tests.chaos.subjects.streamsem import Streamsem
from tests.chaos.trial import Injection, Trial, compare


def parquet(numbers: list[int]) -> bytes:
    out = io.BytesIO()
    columns = {"value": [str(n).encode() for n in numbers], "partition": [0] * len(numbers), "offset": numbers}
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def outcome(*keys: str, result: str = "commit") -> dict[str, Any]:
    return {"result": result, "sinks": {"out": {"files": [{"key": key} for key in keys]}}}


class CheckerOnObjects(Streamsem):
    """A checker that reads the objects that a test provides."""

    def __init__(self, setting: Setting, objects: dict[str, Any]) -> None:
        super().__init__(setting)
        self.objects = {f"t/{key}": v if isinstance(v, bytes) else json.dumps(v).encode() for key, v in objects.items()}

    def _keys(self, below: str) -> list[str]:
        return [key for key in self.objects if key.startswith(f"t/{below}")]

    def _bytes(self, key: str) -> bytes:
        return self.objects[key]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(location=str(tmp_path), topic="t", bootstrap="", master="")


def test_rows_of_committed_outcomes_are_counted_each_time_an_outcome_names_their_file(setting: Setting) -> None:
    spilled = {"out": {"files": [{"key": "data/2/a/x"}]}}
    objects = {
        "log/log/0/0-0.c.json": outcome("data/0/a/x"),
        "log/log/0/0-1.c.json": outcome("data/1/a/x", "data/0/a/x"),
        "log/log/0/0-2.c.json": {"result": "commit", "sinks": {"$spill": "abc", "bytes": 9}},
        "log/log/0/0-3.c.json": outcome("data/3/a/x", result="abort"),
        "log/log/0/0-4.p.json": {},
        "log/spill/abc.json": spilled,
        **{f"out/data/{n}/a/x": parquet([10 * n, 10 * n + 1]) for n in range(5)},
    }
    visible = CheckerOnObjects(setting, objects).visible()
    assert dict(visible.counts) == {0: 2, 1: 2, 10: 1, 11: 1, 20: 1, 21: 1}
    assert visible.reached == {0: 21}


def test_missing_file_of_an_outcome_raises_an_error(setting: Setting) -> None:
    with pytest.raises(KeyError):
        CheckerOnObjects(setting, {"log/log/0/0-0.c.json": outcome("data/0/a/x")}).visible()


def test_number_in_all_sinks_is_counted_as_often_as_in_the_sink_with_most_copies(setting: Setting) -> None:
    numbers_of = {"out": [0, 1, 2], "delta": [0, 1, 1, 2], "database": [0, 1], "topic": [0, 1, 2, 9]}
    each = {name: VisibleRows(Counter(numbers), {0: max(numbers)}) for name, numbers in numbers_of.items()}
    visible = StreamsemIntoSinks(setting).merged(each)
    assert (dict(visible.counts), visible.reached) == ({0: 1, 1: 2}, {0: 1})
    assert sorted(text.partition(" is")[0] for text in visible.violations) == ["number 2", "number 9"]


def test_rows_of_a_delta_table_are_those_of_added_files_that_were_not_removed(setting: Setting) -> None:
    def entry(*actions: dict[str, Any]) -> bytes:
        return b"\n".join(json.dumps(action).encode() for action in actions)

    class CheckerOnDeltaLog(StreamsemIntoSinks):
        _keys, _bytes = CheckerOnObjects._keys, CheckerOnObjects._bytes
        objects: ClassVar = {
            "t/delta/_delta_log/00000000000000000000.json": entry({"protocol": {}}),
            "t/delta/_delta_log/00000000000000000001.json": entry({"add": {"path": "data/0/a%20b"}}, {"add": {"path": "data/0/c"}}),
            "t/delta/_delta_log/00000000000000000001.checkpoint.parquet": b"PAR1",
            "t/delta/_delta_log/00000000000000000002.json": entry({"remove": {"path": "data/0/c"}}),
            "t/delta/data/0/a b": parquet([4, 5]),
            "t/delta/data/0/c": parquet([6]),
        }  # fmt: skip

    assert dict(CheckerOnDeltaLog(setting)._delta_rows().counts) == {4: 1, 5: 1}


def test_loss_is_attributed_to_the_first_fault_after_which_the_dataset_was_past_the_record(setting: Setting) -> None:
    trial = Trial("streamsem", "", 0, [Injection("a", "", reached={0: 1}), Injection("b", "", reached={0: 9})])
    trial.drained = True
    visible = VisibleRows()
    visible.counts.update([0, 1, 1, 3, 77])
    expected = Expected({n: [(0, n)] for n in range(4)}, aborted=0, unknown=0, violations=[])
    fixture: Any = SimpleNamespace(
        subject=SimpleNamespace(commits=lambda: 1, expected=lambda locations: locations), setting=setting, hung=0
    )
    compare(trial, visible, expected, fixture)
    assert (trial.duplicates, trial.losses, trial.foreign, trial.is_clean) == (1, 1, 1, False)
    assert [i.losses for i in trial.injections] == [0, 1]


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_kind_of_fault_is_drawn_once_before_any_is_repeated(name: str) -> None:
    names = kinds(subject_class(name).needs)
    assert set(names) <= set(FAULTS)
    assert sorted(draw(names, len(names), random.Random(1))) == sorted(names)
    assert draw(names, 30, random.Random(1)) == draw(names, 30, random.Random(1))
