"""Starts, kills, freezes and restarts server processes on loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Server:
    """
    A server process in its own session.

    :param name: name of its log file under ``home``
    :param argv: the command
    :param port: port that answers when the server is up, or 0 for a server without a port
    :param address: loopback address of the port
    """

    def __init__(
        self,
        name: str,
        home: Path,
        argv: Sequence[str],
        *,
        port: int = 0,
        address: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.address = address
        self.log = home / f"{name}.log"
        self._home = home
        self._argv = list(argv)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the started process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, seconds: float = 90) -> None:
        """Start the process, and wait until the port answers. Without a port, do not wait."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                cwd=self._home,
                env=self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + seconds
        while self.port and not answers(self.port, self.address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def send(self, signal_: signal.Signals) -> None:
        """Send a signal to the process and its children. After SIGSTOP, wait until every thread of the process has stopped."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal_)
        while signal_ == signal.SIGSTOP and self._has_running_thread():
            time.sleep(0.001)

    def _has_running_thread(self) -> bool:
        stats = [path / "stat" for path in Path(f"/proc/{self.pid}/task").glob("*")]
        try:
            return any(stat.read_text().rsplit(")", 1)[1].split()[0] not in "TtZX" for stat in stats)
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended
            return True

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Wait until the process has ended."""
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM to the process, and SIGKILL after 20 seconds."""
        if self._process is None:
            return
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # children that are still alive


def answers(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether something listens on the port."""
    with suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


_given: set[int] = set()


def free_port() -> int:
    """
    Return an unused port, another one in each call.

    It is below the ports that the system gives to outgoing connections (32768 and above on Linux), so that no connection takes it before a server listens on
    it. Each pytest worker has ports of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)
    first = 10_000 + worker % 4 * 5_000
    while True:
        port = first + secrets.randbelow(5_000)
        if port in _given or answers(port):
            continue
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


@contextmanager
def home_for_others() -> Iterator[Path]:
    """Create a temporary directory that other users can enter. Only its owner can enter pytest's directory."""
    with tempfile.TemporaryDirectory(prefix="streamsem-") as home:
        Path(home).chmod(0o755)
        yield Path(home)


def search_path() -> str:
    """Return a PYTHONPATH with this repository and the PYTHONPATH of this process."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    """Start the servers in order, and stop them in reverse order at the end of the block."""
    started: list[Server] = []
    try:
        for server in servers:
            started.append(server)
            server.start()
        yield
    finally:
        for server in reversed(started):
            server.stop()


def stop_servers_on_sigterm() -> None:
    """Exit on SIGTERM with ``SystemExit``, so that :func:`running` stops its servers. They are in other sessions and do not get the signal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
