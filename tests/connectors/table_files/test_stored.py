"""Planned files of a table are found by listings and by single requests, with the same result."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.table_files import stored
from airflow_provider_streamsem.errors import StoreRefusedError
from airflow_provider_streamsem.stores.dataset import Dataset, open_dataset


@dataclass(frozen=True)
class Planned:
    key: str
    bytes: int
    rows: int = 1
    deleted: int = 0


class Counting:
    """A dataset that counts requests, and that may refuse listings."""

    def __init__(self, dataset: Dataset, *, refuses: bool = False) -> None:
        self._dataset, self._refuses, self.requests = dataset, refuses, Counter[str]()

    def list(self, *arguments: Any, **named: Any) -> Any:
        self.requests["list"] += 1
        if self._refuses:
            raise StoreRefusedError("no listings")
        return self._dataset.list(*arguments, **named)

    def stat(self, key: str) -> Any:
        self.requests["stat"] += 1
        return self._dataset.stat(key)


def write(root: Path, keys: list[str]) -> None:
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"x" * 10)


def counting(monkeypatch: pytest.MonkeyPatch, root: Path, *, refuses: bool = False) -> Counting:
    dataset = Counting(open_dataset(str(root)), refuses=refuses)
    monkeypatch.setattr(stored, "open_dataset", lambda location: dataset)
    return dataset


@pytest.mark.parametrize("seed", range(20))
def test_files_are_missing_if_they_are_absent_or_have_another_size(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directories = ["", "day=1/", "day=2/", "_delta_log/", "é=☃/", "a b/c%20d/"]
    keys = sorted({f"{chance.choice(directories)}{chance.randrange(10**6)}.parquet" for _ in range(400)})
    planned = [
        Planned(key, chance.choice([10, 10, -1, 9])) for key in chance.sample(keys, chance.choice([3, 150, 250]))
    ]
    absent = {file.key for file in planned if chance.random() < 0.1}
    write(tmp_path, [key for key in keys if key not in absent])
    expected = [file for file in planned if file.key in absent or file.bytes == 9]
    assert stored.missing(str(tmp_path), planned) == expected


def test_many_files_are_found_by_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{n:04d}.parquet" for n in range(500)]
    write(tmp_path, keys)
    dataset = counting(monkeypatch, tmp_path)
    assert stored.missing(str(tmp_path), [Planned(key, 10) for key in keys[100:300]]) == []
    assert dataset.requests == {"list": 1}


def test_listing_ends_if_the_table_has_many_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{n:04d}.parquet" for n in range(2_000)]
    write(tmp_path, keys)
    dataset = counting(monkeypatch, tmp_path)
    assert stored.missing(str(tmp_path), [Planned(key, 10) for key in keys[::15]]) == []
    assert dataset.requests == {"list": 1, "stat": 44}  # the listing of 1,340 objects has 90 of the 134 files


def test_files_are_found_if_the_store_refuses_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{n}.parquet" for n in range(200)]
    write(tmp_path, keys[1:])
    dataset = counting(monkeypatch, tmp_path, refuses=True)
    assert stored.missing(str(tmp_path), [Planned(key, 10) for key in keys]) == [Planned("0.parquet", 10)]
    assert dataset.requests == {"list": 1, "stat": 200}
