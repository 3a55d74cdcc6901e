"""Records the start of batches, and holds batches on request of the harness, so that two attempts overlap in one version."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection

from tests.chaos.setting import Setting
from tests.chaos.subjects.streamsem import Streamsem

MAX_HOLD_S = 480.0  # the longest time that a batch is held


def hold_batch(setting: Setting) -> None:
    """Record the open version, and wait while the harness holds batches. A task calls this within a batch."""
    task = {
        "run": os.environ.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        "try_number": os.environ.get("AIRFLOW_CTX_TRY_NUMBER", ""),
    }
    setting.record_event(event="started", version=Streamsem(setting).newest()[0], **task)
    until = time.monotonic() + MAX_HOLD_S
    while is_held(setting, os.getpid()) and time.monotonic() < until:
        time.sleep(0.05)


def hold(setting: Setting, *, but: Collection[int] = ()) -> None:
    """Hold every batch from now on, except those of these processes."""
    temporary = setting.root / "hold.part"
    temporary.write_text(json.dumps(sorted(but)))
    os.replace(temporary, setting.root / "hold")


def release(setting: Setting) -> None:
    (setting.root / "hold").unlink(missing_ok=True)


def is_held(setting: Setting, pid: int) -> bool:
    try:
        return pid not in json.loads((setting.root / "hold").read_text())
    except FileNotFoundError:
        return False
