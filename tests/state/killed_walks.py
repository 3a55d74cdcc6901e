"""Walks of states in processes that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.state.walk import Known


def walk_with_kills(
    location: str, root: Path, seed: int, conf: dict[str, str], kills: int, batches: int = 0
) -> list[Known]:
    """
    Walk in one process after another. Each one is killed, with its JVM, while it runs an attempt.

    :param root: a directory for the known states and the output of the processes
    :param kills: the least number of processes
    :param batches: the walk ends only if a state has been continued by this number of batches
    :returns: the states that the processes wrote
    """
    chance = random.Random(seed)
    file, output = root / "known.jsonl", root / "output.txt"
    file.touch()
    process = 0
    while process < kills or max((known.state.batches for known in _read(file) if known.state), default=0) < batches:
        process += 1
        enough = len(file.read_text().splitlines()) + chance.randrange(2, 10)
        command = [sys.executable, "-m", "tests.state.walk", location, str(file), str(seed + process), json.dumps(conf)]
        with open(output, "ab") as log:
            walker = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while len(file.read_text().splitlines()) < enough:
                assert walker.poll() is None, output.read_text()[-3000:]
                time.sleep(0.05)
            time.sleep(chance.random())
            assert walker.poll() is None, output.read_text()[-3000:]
        finally:
            os.killpg(walker.pid, signal.SIGKILL)
            walker.wait()
    return _read(file)


def _read(file: Path) -> list[Known]:
    return [Known.from_json(line) for line in file.read_text().splitlines()]
