"""The calls on a database's driver, one after the other: a publisher dies at one of them, or loses its answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_streamsem.testing.stores import Crash


def _disk_error() -> Exception:
    return sqlite3.OperationalError("disk I/O error")


@dataclass
class Steps:
    """At call number ``at``, from 0, the process is dead ``after`` it, or its answer is ``lost``."""

    at: int = -1
    fault: str = ""
    names: list[str] = field(default_factory=list)
    dead: bool = False

    def take(
        self, name: str, call: Callable[[], Any], die: Callable[[], None], lost: Callable[[], Exception] = _disk_error
    ) -> Any:
        """
        One call.

        :param die: what becomes of the connection of a process that is gone
        :param lost: what the driver raises in place of an answer
        """
        if self.dead:
            return None  # what is dead does nothing, whatever SQLAlchemy would have it do
        here = len(self.names) == self.at
        self.names.append(name)
        answer = call()
        if here and self.fault == "after":
            self.dead = True
            die()
            raise Crash
        if here and self.fault == "lost":
            raise lost()
        return answer
