"""Google's in-memory Pub/Sub server for tests, ``pstest``. It ignores the flag for exactly-once delivery, drops attributes of dead letters, and repeats them."""

from __future__ import annotations

from pathlib import Path

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port


class PubSubServer(Server):
    """A server at ``address_of_clients``, which is the value of ``PUBSUB_EMULATOR_HOST``. A kill deletes everything."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.address_of_clients = f"127.0.0.1:{port}"
        super().__init__("pubsub", home, [install.pubsub_server(), self.address_of_clients], port=port)
