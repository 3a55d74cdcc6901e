"""A private RabbitMQ broker from Debian's programs."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

from tests.integration.parts import install
from tests.integration.parts.server import Server, answers, free_port

PROGRAMS = "/usr/lib/rabbitmq/bin"  # the wrapper on PATH switches to a user who cannot write to a temporary home


class RabbitMQ(Server):
    """A broker at ``host`` with the user ``guest`` and the password ``guest``. Durable queues and messages survive a kill."""

    def __init__(self, home: Path) -> None:
        program = shutil.which("rabbitmq-server", path=PROGRAMS) or install.tool("rabbitmq-server")
        home.mkdir(parents=True, exist_ok=True)
        port, epmd_port = free_port(), free_port()
        self.host = f"127.0.0.1:{port}"
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self.host}\nloopback_users = none\nlog.console = true\nlog.file = false\n"
        )
        (home / "plugins").write_text("[].")
        environment = {
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"streamsem-{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        # If epmd does not run, Erlang starts it and leaves it running.
        self._epmd = Server("epmd", home, [install.tool("epmd")], port=epmd_port, environment=environment)
        super().__init__("rabbitmq", home, [program], port=port, environment=environment)

    def start(self, *, seconds: float = 90) -> None:
        """Start epmd and the broker, and wait until the broker answers in its protocol. It accepts connections long before that if the machine is busy."""
        if not self._epmd.is_running:
            self._epmd.start()
        super().start(seconds=seconds)
        deadline = time.monotonic() + seconds
        while not self._speaks() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _speaks(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"AMQP\0\0\x09\x01")
                return connection.recv(1) == b"\x01"  # the first byte of a frame of a method
        except OSError:
            return False

    def wait(self) -> None:
        """Wait until the process and its child process have ended."""
        super().wait()
        while answers(self.port):
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the broker and epmd."""
        super().stop()
        self._epmd.stop()
