"""Kills and stops real Spark drivers of one pipeline at random moments. pyarrow counts the visible rows in the files that the outcomes name."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest

from airflow_provider_streamsem import verify

ROUNDS = 5
FILES, ROWS = 12, 2_000
TOML = """
name = "prove"
log = "{root}/log"
[source]
type = "files"
path = "{root}/in"
format = "json"
schema = "id long, pad string"
[limits]
max_files = 3
[sinks.out]
type = "files"
path = "{root}/out"
"""


def start(root: Path, run_key: str) -> subprocess.Popen[bytes]:
    """Start a driver: ``streamsem run`` in a separate process and session."""
    command = [
        sys.executable,
        "-m",
        "airflow_provider_streamsem.cli.main",
        "run",
        str(root / "p.toml"),
        "--drain",
        "--run-key",
        run_key,
        "--master",
        "local[1]",
    ]
    with open(root / "drivers.log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def visible(root: Path) -> Counter[int]:
    """Return the ids in the files that committed outcomes name, read as plain JSON and Parquet."""
    ids: Counter[int] = Counter()
    for path in (root / "log" / "log").rglob("*.c.json"):
        outcome = json.loads(path.read_text())
        if outcome["result"] == "commit":
            for file in outcome["sinks"]["out"]["files"]:
                ids.update(
                    pyarrow.parquet.ParquetFile(root / "out" / file["key"]).read(columns=["id"])["id"].to_pylist()
                )
    return ids


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_spark_drivers_killed_and_stopped_at_random_lose_and_duplicate_no_rows(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "in").mkdir()
    for n in range(FILES):
        lines = [json.dumps({"id": n * ROWS + i, "pad": "x" * 50}) for i in range(ROWS)]
        (tmp_path / "in" / f"{n:02d}.json").write_text("\n".join(lines))
    (tmp_path / "p.toml").write_text(TOML.format(root=tmp_path))
    drivers = [start(tmp_path, "run"), start(tmp_path, "run" if seed % 2 else "other")]
    deadline = time.monotonic() + 240
    while not list((tmp_path / "out").glob("data/*/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(rng.random() * 3)
    victim, stopped = rng.sample(drivers, 2)
    os.killpg(victim.pid, signal.SIGKILL)
    if stopped.poll() is None:
        os.killpg(stopped.pid, signal.SIGSTOP)
    retry = start(tmp_path, "run")
    assert retry.wait(300) == 0
    if stopped.poll() is None:
        os.killpg(stopped.pid, signal.SIGCONT)
    assert stopped.wait(300) == 0, "the resumed driver failed"
    assert victim.wait(10) == -signal.SIGKILL or victim.returncode == 0
    assert start(tmp_path, "rest").wait(300) == 0
    expected = Counter(range(FILES * ROWS))
    actual = visible(tmp_path)
    assert actual == expected, (
        f"seed {seed}: lost {sum((expected - actual).values())}, duplicated {sum((actual - expected).values())}"
    )
    assert verify(str(tmp_path / "log")).violations == []
