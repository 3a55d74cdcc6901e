"""What a batch under test says of itself, and how long it takes: the harness makes one long, so that two attempts meet in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection

from tests.chaos.setting import Setting
from tests.chaos.subjects.streamsem import Streamsem

AT_MOST_S = 480.0  # the end of a batch that was held and never let go


def in_a_batch(setting: Setting) -> None:
    """In a task's process, within a batch: say which version is open, and stay as long as the harness asks."""
    who = {
        "run": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        "try_number": os.environ.get("AIRFLOW_CTX_TRY_NUMBER", ""),
    }
    setting.say(event="started", version=Streamsem(setting).newest()[0], **who)
    until = time.monotonic() + AT_MOST_S
    while is_held(setting, os.getpid()) and time.monotonic() < until:
        time.sleep(0.05)


def hold(setting: Setting, *, but: Collection[int] = ()) -> None:
    """From now on every batch stays where it is, but those of these processes."""
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
