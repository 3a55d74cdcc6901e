"""The settings of a trial, in a file that the harness and the runner processes read."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BUCKET = "lake"
MAX_ROWS = 400  # batch limit of every subject; small, so that a run has many batches that a fault can hit


@dataclass(frozen=True)
class Setting:
    """
    Addresses and paths of one trial.

    :param location: directory of this trial
    :param master: Spark master
    :param s3_endpoint: endpoint of the S3 server, or ``""`` if the subject needs none
    :param postgres: DSN of Postgres, or ``""``
    """

    location: str
    topic: str
    bootstrap: str
    master: str
    s3_endpoint: str = ""
    postgres: str = ""

    @property
    def root(self) -> Path:
        return Path(self.location)

    @property
    def events(self) -> Path:
        """The event log of the runners, one JSON object per line. Several processes append to it."""
        return self.root / "events.jsonl"

    def write(self) -> Path:
        file = self.root / "setting.json"
        file.write_text(json.dumps(asdict(self)))
        return file

    @classmethod
    def read(cls, file: str) -> Setting:
        return cls(**json.loads(Path(file).read_text()))

    def record_event(self, **event: Any) -> None:
        line = json.dumps({"pid": os.getpid(), **event}) + "\n"
        to = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(to, line.encode())
        finally:
            os.close(to)

    def read_events(self) -> list[dict[str, Any]]:
        if not self.events.exists():
            return []
        return [json.loads(line) for line in self.events.read_text().splitlines()]

    def run_number(self) -> int:
        """Return the number of the current run key. It advances only when a runner has finished the run."""
        try:
            return int((self.root / "run").read_text())
        except FileNotFoundError:
            return 0

    def finish_run(self, number: int) -> None:
        """Advance to the run key after this one."""
        following = max(number + 1, self.run_number())  # a zombie that finishes late must not decrease the number
        temporary = self.root / f"run.{os.getpid()}.{random.random()}"
        temporary.write_text(str(following))
        os.replace(temporary, self.root / "run")
