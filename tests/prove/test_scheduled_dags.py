"""The DAG of the README with a real scheduler and its own schedule, while files arrive."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from airflow_provider_streamsem import open_log, verify
from tests.integration.parts.airflow import Airflow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def dag_of_the_readme(home: Path) -> str:
    """Return the first DAG of the README, with its two locations moved below ``home``."""
    code = re.search(r"```python\n(from datetime.*?)```", README, re.DOTALL)
    assert code is not None
    relocated = code[1].replace("s3://lake/", f"{home}/lake/").replace("/data/", f"{home}/data/")
    assert relocated.count(str(home)) == 3, "the README has other locations than this test replaces"
    return relocated


def arrive(folder: Path, n: int) -> None:
    rows = [{"id": n * 100 + i, "user": "ann", "amount": "1.50", "ts": "2026-01-02T03:04:05Z"} for i in range(100)]
    hidden = folder / f".{n}.json"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / f"{n}.json")


@pytest.mark.prove
@pytest.mark.airflow
@pytest.mark.timeout(900)
def test_dag_of_the_readme_reads_arriving_files_in_scheduled_runs_and_idles_without_files(tmp_path: Path) -> None:
    folder, arrivals = tmp_path / "dags", tmp_path / "data" / "arrivals"
    folder.mkdir()
    arrivals.mkdir(parents=True)
    (folder / "orders.py").write_text(dag_of_the_readme(tmp_path))
    airflow = Airflow(tmp_path / "airflow", folder)

    def runs() -> list[dict[str, Any]]:
        dag_runs: list[dict[str, Any]] = airflow.request("GET", "/dags/orders/dagRuns")["dag_runs"]
        return [run for run in dag_runs if run["run_type"] == "scheduled" and run["state"] in ("success", "failed")]

    log = f"{tmp_path}/lake/_streamsem/orders"

    def rows_read() -> int:
        return open_log(log).view().counts.get("read", 0) if Path(log, "pipeline.json").exists() else 0

    with airflow.running():
        began = time.monotonic()
        for n in range(3):
            arrive(arrivals, n)
            airflow.until("a run is there", lambda n=n: len(runs()) > n, 240)
            airflow.until("the new file is read", lambda n=n: rows_read() == (n + 1) * 100, 180)
        airflow.until("an idle run ends", lambda: json.dumps(runs()).count('"success"') >= 4, 240)
        assert {run["state"] for run in runs()} == {"success"}
        assert len(runs()) <= (time.monotonic() - began) / 60 + 2, (
            "without new files, the schedule must determine the number of runs"
        )
        scheduler = airflow.schedulers[0].log.read_text()
    assert "already exists" not in scheduler
    rows = [row for file in open_log(log).files() for row in pyarrow.parquet.ParquetFile(file.path).read().to_pylist()]
    assert Counter(row["id"] for row in rows) == Counter(range(300))
    assert verify(log).violations == []
