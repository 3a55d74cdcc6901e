"""Events of a batch under test, and a way to hold it: the harness extends a batch so that two attempts overlap in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection

from tests.chaos.setting import Setting
from tests.chaos.subjects.streamsem import Streamsem

AT_MOST_S = 480.0  # how long at most a batch is held


def in_a_batch(setting: Setting) -> None:
    """Record in a task's process, within a batch, which version is open, and stay as long as the harness asks."""
    who = {
        "run": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        "try_number": os.environ.get("AIRFLOW_CTX_TRY_NUMBER", ""),
    }
    setting.record_event(event="started", version=Streamsem(setting).newest()[0], **who)
    until = time.monotonic() + AT_MOST_S
    while is_held(setting, os.getpid()) and time.monotonic() < until:
        time.sleep(0.05)


def hold(setting: Setting, *, but: Collection[int] = ()) -> None:
    """Hold every batch from now on, except those of these processes."""
    part = setting.root / "hold.part"
    part.write_text(json.dumps(sorted(but)))
    os.replace(part, setting.root / "hold")


def let_go(setting: Setting) -> None:
    (setting.root / "hold").unlink(missing_ok=True)


def is_held(setting: Setting, pid: int) -> bool:
    try:
        return pid not in json.loads((setting.root / "hold").read_text())
    except FileNotFoundError:
        return False
