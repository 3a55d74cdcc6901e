"""The checker sees what it is there to see: a record twice, a record not at all, a row of an aborted transaction."""

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

from tests.chaos.faults import FAULTS, drawn, kinds
from tests.chaos.setting import Setting
from tests.chaos.subjects import SUBJECTS, subject_class
from tests.chaos.subjects.contract import Seen
from tests.chaos.subjects.into_sinks import StreamsemIntoSinks
from tests.chaos.subjects.streamsem import Streamsem
from tests.chaos.trial import Injection, Trial, judge
from tests.chaos.truth import Truth


def parquet(numbers: list[int]) -> bytes:
    out = io.BytesIO()
    columns = {"value": [str(n).encode() for n in numbers], "partition": [0] * len(numbers), "offset": numbers}
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def outcome(*keys: str, result: str = "commit") -> dict[str, Any]:
    return {"result": result, "sinks": {"out": {"files": [{"key": key} for key in keys]}}}


class OfBytes(Streamsem):
    """The checker on objects of a test."""

    def __init__(self, setting: Setting, objects: dict[str, Any]) -> None:
        super().__init__(setting)
        self.objects = {f"t/{key}": v if isinstance(v, bytes) else json.dumps(v).encode() for key, v in objects.items()}

    def _keys(self, below: str) -> list[str]:
        return [key for key in self.objects if key.startswith(f"t/{below}")]

    def _bytes(self, key: str) -> bytes:
        return self.objects[key]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(place=str(tmp_path), topic="t", bootstrap="", master="")


def test_only_what_committed_outcomes_name_is_visible_and_as_often_as_they_name_it(setting: Setting) -> None:
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
    seen = OfBytes(setting, objects).visible()
    assert dict(seen.counts) == {0: 2, 1: 2, 10: 1, 11: 1, 20: 1, 21: 1}
    assert seen.reached == {0: 21}


def test_file_that_is_named_and_is_not_there_is_an_error(setting: Setting) -> None:
    with pytest.raises(KeyError):
        OfBytes(setting, {"log/log/0/0-0.c.json": outcome("data/0/a/x")}).visible()


def test_number_counts_where_all_sinks_show_it_and_as_often_as_the_sink_that_shows_it_most(setting: Setting) -> None:
    shown = {"out": [0, 1, 2], "delta": [0, 1, 1, 2], "database": [0, 1], "topic": [0, 1, 2, 9]}
    each = {name: Seen(Counter(numbers), {0: max(numbers)}) for name, numbers in shown.items()}
    seen = StreamsemIntoSinks(setting).together(each)
    assert (dict(seen.counts), seen.reached) == ({0: 1, 1: 2}, {0: 1})
    assert sorted(text.partition(" is")[0] for text in seen.findings) == ["number 2", "number 9"]


def test_rows_of_a_delta_table_are_those_that_its_log_adds_and_does_not_remove(setting: Setting) -> None:
    def entry(*actions: dict[str, Any]) -> bytes:
        return b"\n".join(json.dumps(action).encode() for action in actions)

    class OfLog(StreamsemIntoSinks):
        _keys, _bytes = OfBytes._keys, OfBytes._bytes
        objects: ClassVar = {
            "t/delta/_delta_log/00000000000000000000.json": entry({"protocol": {}}),
            "t/delta/_delta_log/00000000000000000001.json": entry({"add": {"path": "data/0/a%20b"}}, {"add": {"path": "data/0/c"}}),
            "t/delta/_delta_log/00000000000000000001.checkpoint.parquet": b"PAR1",
            "t/delta/_delta_log/00000000000000000002.json": entry({"remove": {"path": "data/0/c"}}),
            "t/delta/data/0/a b": parquet([4, 5]),
            "t/delta/data/0/c": parquet([6]),
        }  # fmt: skip

    assert dict(OfLog(setting)._delta().counts) == {4: 1, 5: 1}


def test_judge_counts_and_gives_a_loss_to_the_fault_after_which_it_had_been_passed(setting: Setting) -> None:
    trial = Trial("streamsem", "", 0, [Injection("a", "", reached={0: 1}), Injection("b", "", reached={0: 9})])
    trial.drained = True
    seen = Seen()
    seen.counts.update([0, 1, 1, 3, 77])
    known = Truth({n: [(0, n)] for n in range(4)}, aborted=0, unknown=0, findings=[])
    world: Any = SimpleNamespace(subject=SimpleNamespace(commits=lambda: 1), setting=setting, hung=0)
    judge(trial, seen, known, world)
    assert (trial.duplicates, trial.losses, trial.foreign, trial.is_clean) == (1, 1, 1, False)
    assert [i.losses for i in trial.injections] == [0, 1]


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_kind_of_fault_is_drawn_before_any_is_drawn_again(name: str) -> None:
    names = kinds(subject_class(name).needs)
    assert set(names) <= set(FAULTS)
    assert sorted(drawn(names, len(names), random.Random(1))) == sorted(names)
    assert drawn(names, 30, random.Random(1)) == drawn(names, 30, random.Random(1))
