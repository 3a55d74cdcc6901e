"""Debezium in a Kafka Connect worker of one process, from Maven's jars."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port


class Debezium(Server):
    """
    A worker with one connector, or none. Its offsets are in a file, so a killed worker sends the changes again that it sent after the last write of the file.

    :param connector: settings of the connector
    :param converter: settings of the worker's converter for keys and values
    """

    def __init__(
        self,
        home: Path,
        *,
        bootstrap: str,
        connector: Mapping[str, Any] | None = None,
        converter: Mapping[str, Any] | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._rest = free_port()
        converters = converter or {
            f"{part}.converter{setting}": value
            for part in ("key", "value")
            for setting, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
        }
        worker = {
            "bootstrap.servers": bootstrap,
            "listeners": f"http://127.0.0.1:{self._rest}",
            "offset.storage.file.filename": str(home / "offsets"),
            "offset.flush.interval.ms": 1000,
            **converters,
        }
        self.connector = "" if connector is None else str(connector["name"])
        files: dict[str, Mapping[str, Any]] = {"worker": worker}
        if connector is not None:
            files["connector"] = {"topic.creation.default.replication.factor": 1, **connector}
        for name, settings in files.items():
            lines = (f"{key}={value}\n" for key, value in settings.items())
            (home / f"{name}.properties").write_text("".join(lines))
        argv = [
            install.java(), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp", install.classpath("debezium"), "org.apache.kafka.connect.cli.ConnectStandalone",
            *(str(home / f"{name}.properties") for name in files),
        ]  # fmt: skip
        super().__init__("debezium", home, argv, port=self._rest)

    def status(self) -> str:
        """Return the state of the connector's task: ``RUNNING`` or ``FAILED``. Empty if it has none yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._rest}/connectors/{self.connector}/status") as answer:
                tasks = json.load(answer)["tasks"]
        except OSError:
            return ""
        return tasks[0]["state"] if tasks else ""

    def start(self, *, seconds: float = 90) -> None:
        """Start the worker, and wait until its task runs."""
        super().start(seconds=seconds)
        if not self.connector:
            return
        deadline = time.monotonic() + seconds
        while self.status() != "RUNNING":
            if self.status() == "FAILED" or time.monotonic() > deadline:
                raise RuntimeError(f"the connector does not run:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
