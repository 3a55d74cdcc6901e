"""Starts, kills and freezes runner processes, and detects those that hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from tests.chaos.setting import Setting
from tests.integration.parts.server import search_path

HANGS_AFTER_S = 90.0


class Driver:
    """One runner process in its own session, and the JVM that it starts."""

    def __init__(self, subject: str, setting: Setting, environment: dict[str, str], *, once: bool = False) -> None:
        argv = [sys.executable, "-m", "tests.chaos.runner", subject, str(setting.root / "setting.json")]
        with open(setting.root / "runners.log", "ab") as log:
            self.process = subprocess.Popen(
                [*argv, *(["once"] if once else [])],
                cwd=setting.root,
                env={**os.environ, "PYTHONPATH": search_path(), **environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.is_stopped = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def jvm(self) -> psutil.Process | None:
        """Return the JVM that the runner started, or ``None`` if there is none yet."""
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if child.name() == "java" and "SparkSubmit" in " ".join(child.cmdline()):
                        return child
        return None

    def stop(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)
        self.is_stopped = False

    def kill(self) -> bool:
        """Send SIGKILL to the group. Return whether this ended the runner."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.process.wait() == -signal.SIGKILL


class HangDetector:
    """Detects a driver that hangs: it is not frozen, and caused no event and no commit for 90 seconds."""

    def __init__(self) -> None:
        self._last: object = None
        self._since = time.monotonic()

    def hangs(self, progress: object, frozen: bool) -> bool:
        if frozen or progress != self._last:
            self._last = progress
            self._since = time.monotonic()
        return time.monotonic() - self._since > HANGS_AFTER_S
