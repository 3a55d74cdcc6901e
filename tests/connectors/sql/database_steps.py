"""Numbers the calls to a database driver. A publisher dies after one of them, or loses its reply."""

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
    """Counts calls from 0. At call number ``at``, the process dies after the call (fault ``after``), or the reply is lost (fault ``lost``)."""

    at: int = -1
    fault: str = ""
    names: list[str] = field(default_factory=list)
    dead: bool = False

    def call(
        self, name: str, work: Callable[[], Any], die: Callable[[], None], lost: Callable[[], Exception] = _disk_error
    ) -> Any:
        """
        Make one call.

        :param die: closes the connection of a dead process
        :param lost: the error that the driver raises instead of a reply
        """
        if self.dead:
            return None  # a dead process does nothing, whatever cleanup SQLAlchemy attempts
        is_target = len(self.names) == self.at
        self.names.append(name)
        reply = work()
        if is_target and self.fault == "after":
            self.dead = True
            die()
            raise Crash
        if is_target and self.fault == "lost":
            raise lost()
        return reply
