"""The commands in README and docs exist and start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS, growth, vacuum_costs
from tests.integration.parts.server import answers, free_port

ROOT = Path(__file__).parents[2]
PAGES = "\n".join(page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def test_every_benchmark_named_by_a_page_exists() -> None:
    named = set(re.findall(r"make bench ARGS=(\w+)", PAGES))
    assert {"kafka", "delta", "dedup"} <= named
    for name in named:
        assert name in PARTS or callable(import_module(f"benchmarks.{name}").main), name


def test_benchmarks_run_from_the_root_of_a_clone_and_refuse_unknown_parts() -> None:
    command = subprocess.run(
        ["make", "-n", "bench", "ARGS=kafka"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "python -m benchmarks kafka" in command.stdout
    refused = subprocess.run(
        [sys.executable, "-m", "benchmarks", "kafkaa"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "unknown parts: kafkaa" in refused.stderr


def test_benchmarks_of_the_log_complete(capsys: pytest.CaptureFixture[str]) -> None:
    growth((100,))
    vacuum_costs((100, 300))
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    batch, small, large = ([cell.strip() for cell in row] for row in rows)
    assert batch[1:3] == ["100", "10"], "log requests of a single batch"
    assert small[4] == large[4] == "6", "requests of a vacuum that has inspected all versions"


def test_program_ended_by_sigterm_stops_its_servers(tmp_path: Path) -> None:
    port = free_port()
    program = (
        "import sys, time; from pathlib import Path\n"
        "from tests.integration.parts.server import Server, running, stop_servers_on_sigterm\n"
        "stop_servers_on_sigterm()\n"
        f"argv = [sys.executable, '-m', 'http.server', '--bind', '127.0.0.1', '{port}']\n"
        f"with running(Server('web', Path({str(tmp_path)!r}), argv, port={port})):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 143
    assert not answers(port)
