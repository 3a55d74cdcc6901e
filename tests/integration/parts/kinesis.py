"""A Kinesis server on loopback: kinesalite from npm. It keeps its records in memory."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port

SCRIPT = Path(__file__).with_name("kinesalite.js")


class Kinesalite(Server):
    """A server at ``url``."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        argv = [install.tool("node"), str(SCRIPT), str(install.kinesalite()), str(port)]
        super().__init__("kinesalite", home, argv, port=port)

    def client(self) -> Any:
        """Return a boto3 client."""
        import boto3

        return boto3.client("kinesis", endpoint_url=self.url, region_name="us-east-1")

    def create(self, stream: str, shards: int = 1) -> None:
        """Create a stream, and wait until it is active."""
        self.client().create_stream(StreamName=stream, ShardCount=shards)
        self.wait_for(stream)

    def wait_for(self, stream: str) -> None:
        """Wait until a stream is active."""
        client = self.client()
        while client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
            time.sleep(0.01)

    def set_clock(self, hours: int) -> None:
        """Set the server's clock, relative to the real one. Records expire 24 hours after their arrival by this clock."""
        self._control(f"clock?hours={hours}")

    def throttle(self, **requests: int) -> None:
        """Refuse the next requests of each name, such as ``GetRecords=3``."""
        self._control("throttle?" + "&".join(f"{name}={number}" for name, number in requests.items()))

    def requests(self) -> dict[str, int]:
        """Return the number of answered requests by name since the last call."""
        counts: dict[str, int] = json.loads(self._control("requests"))
        return counts

    def _control(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/control/{path}", timeout=10) as response:
            data: bytes = response.read()
        return data
