"""A private Postgres server from Debian's programs, run by an unprivileged user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port

PROGRAMS = sorted((str(p) for p in Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)


class Postgres(Server):
    """Database ``postgres`` of user ``postgres``, with trust authentication on loopback."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        data = home / "data"
        as_user: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(home, "postgres")
            home.chmod(0o755)
            as_user = [install.tool("setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        initdb = shutil.which("initdb", path=":".join(PROGRAMS)) or install.tool("initdb")
        if not data.exists():
            subprocess.run(
                [*as_user, initdb, "-D", str(data), "-U", "postgres", "-A", "trust"],
                check=True,
                capture_output=True,
                cwd="/",
            )
        server = os.path.join(os.path.dirname(initdb), "postgres")
        # A killed server loses nothing that it wrote to the operating system. Only a crash of the machine would.
        settings = ["-c", "fsync=off", "-c", "max_prepared_transactions=10", "-c", "wal_level=logical"]
        argv = [*as_user, server, "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(home), *settings]
        super().__init__("postgres", home, argv, port=port)
        self._pid_file = data / "postmaster.pid"

    def start(self, *, seconds: float = 90) -> None:
        """Start the server, and wait until it accepts connections. After a crash it recovers first."""
        self._pid_file.unlink(missing_ok=True)
        super().start(seconds=seconds)
        deadline = time.monotonic() + seconds
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def send(self, signal_: signal.Signals) -> None:
        """Send a signal to the server. SIGKILL, SIGSTOP and SIGCONT also go to its backends, each of which has its own session."""
        sessions: list[psutil.Process] = []
        if signal_ in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
            with suppress(psutil.NoSuchProcess):
                sessions = psutil.Process(self.pid).children(recursive=True)
        super().send(signal_)
        for session in sessions:
            with suppress(psutil.NoSuchProcess):
                session.send_signal(signal_)
