"""``streamsem ui`` serves logs on this machine, until it is interrupted."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.stores.contract import open_store
from tests.pipeline_fixture import PipelineFixture
from tests.web.server_process import serving


def fetched(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_logs_are_served_until_the_command_is_interrupted(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_store(str(tmp_path / "log")))
    fixture.arrive(1)
    fixture.run("first")
    with serving(fixture.store.url) as (url, process):
        status, text = fetched(f"{url}api/pipelines")
        assert (status, [pipeline["name"] for pipeline in json.loads(text)]) == (200, ["world"])
        status, _ = fetched(f"{url}api/pipelines", Host="attacker.example")
        assert status == 400, "a web site whose name resolves to this machine is refused"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "stopped\n")


def test_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "/no-log", "--port", str(port)]) == 2
    assert f"the page cannot be served at this port (port={port}, reason=" in capsys.readouterr().err
