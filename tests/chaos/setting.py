"""What a runner process and the harness agree on: a file that both read."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BUCKET = "lake"
MAX_ROWS = 400  # of one batch of every subject: small, so that a run has many moments at which it can be hit


@dataclass(frozen=True)
class Setting:
    """
    Where one trial happens.

    :param place: a directory of the trial's own
    :param master: of Spark
    :param s3_endpoint: of the S3 server, ``""`` where the subject needs none
    :param postgres: DSN, likewise
    """

    place: str
    topic: str
    bootstrap: str
    master: str
    s3_endpoint: str = ""
    postgres: str = ""

    @property
    def root(self) -> Path:
        return Path(self.place)

    @property
    def events(self) -> Path:
        """What the runners say of themselves, a JSON line each; several processes append to it."""
        return self.root / "events.jsonl"

    def write(self) -> Path:
        file = self.root / "setting.json"
        file.write_text(json.dumps(asdict(self)))
        return file

    @classmethod
    def read(cls, file: str) -> Setting:
        return cls(**json.loads(Path(file).read_text()))

    def say(self, **event: Any) -> None:
        line = json.dumps({"pid": os.getpid(), **event}) + "\n"
        to = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(to, line.encode())
        finally:
            os.close(to)

    def said(self) -> list[dict[str, Any]]:
        if not self.events.exists():
            return []
        return [json.loads(line) for line in self.events.read_text().splitlines()]

    def run_number(self) -> int:
        """Of the run key that is to be run now: it moves on only when a runner has finished it."""
        try:
            return int((self.root / "run").read_text())
        except FileNotFoundError:
            return 0

    def finished(self, number: int) -> None:
        following = max(number + 1, self.run_number())  # a zombie that finishes late does not put the number back
        part = self.root / f"run.{os.getpid()}.{random.random()}"
        part.write_text(str(following))
        os.replace(part, self.root / "run")
