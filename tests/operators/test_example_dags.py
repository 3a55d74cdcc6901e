"""The payments, metrics, readings and counts examples, run with Airflow's task execution and real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from airflow_provider_streamsem import open_log, verify
from tests.connectors.http.endpoints import Recorder, serving
from tests.releases import dag_files

pytestmark = pytest.mark.airflow
EXAMPLES = sorted(path.stem for path in Path(__file__).parents[2].joinpath("dags").glob("*.py"))


def arrive(home: Path, name: str, first: int, count: int, bad: str = "") -> None:
    lines = [
        json.dumps({"id": f"p-{n}", "account": "A", "cents": n, "at": "2026-01-01T00:00:00Z"})
        for n in range(first, first + count)
    ]
    location = home / "arrivals"
    location.mkdir(exist_ok=True)
    (location / f".{name}").write_text("\n".join([*lines, *([bad] if bad else [])]) + "\n")
    (location / f".{name}").rename(location / name)


def ledger(home: Path) -> list[dict[str, Any]]:
    """Return every visible row, read by another engine."""
    files = open_log(str(home / "log")).files()
    return [row for file in files for row in pyarrow.parquet.ParquetFile(file.path).read().to_pylist()]


@pytest.mark.spark
def test_payments_are_booked_once_and_bad_records_replay_and_maintenance_work(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag

    initialise_airflow()
    monkeypatch.setenv("STREAMSEM_PAYMENTS_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    sys.modules.pop("streamsem_payments", None)
    import streamsem_payments

    book = streamsem_payments.streamsem_payments()
    arrive(tmp_path, "a.json", 0, 50)
    assert run_dag(book, "first").state == "success"
    arrive(tmp_path, "b.json", 50, 50)
    assert run_dag(book, "second").state == "success"
    expected = Counter(f"p-{n}" for n in range(100))
    assert Counter(row["id"] for row in ledger(tmp_path)) == expected
    assert run_dag(book, "second", clear=["book"]).state == "success"
    assert Counter(row["id"] for row in ledger(tmp_path)) == expected
    replay = streamsem_payments.streamsem_payments_replay()
    assert run_dag(replay, "replayed", conf={"first": 0, "last": 5}).state == "success"
    rows = ledger(tmp_path)
    assert Counter(row["id"] for row in rows) == expected
    assert {row["account"] for row in rows} == {"a"}
    assert run_dag(streamsem_payments.streamsem_payments_maintenance(), "night").state == "success"
    arrive(tmp_path, "c.json", 100, 5, bad="this is no payment")
    assert run_dag(book, "third").state == "failed"
    assert Counter(row["id"] for row in ledger(tmp_path)) == expected
    assert verify(str(tmp_path / "log")).violations == []
    sys.modules.pop("streamsem_payments", None)


@pytest.mark.spark
def test_metrics_are_pushed_once_and_unknown_ones_are_reported_and_not_pushed_again(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag

    def arrive_views(name: str, **views: int) -> None:
        (tmp_path / "arrivals").mkdir(exist_ok=True)
        lines = [json.dumps({"page": page}) for page, times in views.items() for _ in range(times)]
        (tmp_path / "arrivals" / name).write_text("\n".join(lines) + "\n")

    def receipt(version: int) -> Any:
        receipts = open_log(str(tmp_path / "log")).log.receipts(version)
        assert receipts is not None
        return receipts.sinks["push"]

    initialise_airflow()
    with serving(Recorder()) as counters:
        monkeypatch.setenv("STREAMSEM_METRICS_HOME", str(tmp_path))
        monkeypatch.setenv("STREAMSEM_METRICS_URL", counters.url)
        monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
        sys.modules.pop("streamsem_metrics", None)
        import streamsem_metrics

        push = streamsem_metrics.streamsem_metrics()
        arrive_views("a.json", home=3, about=2)
        assert run_dag(push, "first").state == "success"
        assert run_dag(push, "first", clear=["push"]).state == "success"
        expected = Counter({"home": 3, "about": 2})
        assert sum((Counter({c.body["page"]: c.body["increment"]}) for c in counters.calls), Counter()) == expected
        assert (receipt(0).result, receipt(0).rows) == ("applied", 2)
        # The endpoint increments its counter, and its reply is lost. The effect is unknown, so the call is not repeated.
        counters.reply_to = lambda call: "lost" if call.body["page"] == "home" else 200
        arrive_views("b.json", home=4, about=1)
        assert run_dag(push, "second").state == "success"
        counters.reply_to = lambda call: 200
        assert run_dag(push, "second", clear=["push"]).state == "success"
        expected += Counter({"home": 4, "about": 1})
        assert sum((Counter({c.body["page"]: c.body["increment"]}) for c in counters.calls), Counter()) == expected
        assert (receipt(1).result, receipt(1).rows, receipt(1).detail["unknown"]) == ("unknown", 1, 1)
    assert verify(str(tmp_path / "log")).violations == []
    sys.modules.pop("streamsem_metrics", None)


@pytest.mark.spark
def test_windows_of_readings_are_written_once_through_retries_and_clears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag

    def arrive_readings(name: str, *readings: tuple[str, float]) -> None:
        (tmp_path / "arrivals").mkdir(exist_ok=True)
        lines = [
            json.dumps({"sensor": "hall", "at": f"2026-01-01T{at}Z", "celsius": celsius}) for at, celsius in readings
        ]
        (tmp_path / "arrivals" / name).write_text("\n".join(lines) + "\n")

    initialise_airflow()
    monkeypatch.setenv("STREAMSEM_READINGS_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    sys.modules.pop("streamsem_readings", None)
    import streamsem_readings

    dag = streamsem_readings.streamsem_readings()
    arrive_readings("1.json", ("12:01:00", 19.5), ("12:03:00", 20.5), ("12:07:00", 21.0))
    assert run_dag(dag, "first").state == "success"
    assert ledger(tmp_path) == []
    arrive_readings("2.json", ("12:04:00", 23.0), ("12:21:00", 22.0))
    assert run_dag(dag, "second").state == "success"
    assert run_dag(dag, "second", clear=["average"]).state == "success"
    assert run_dag(dag, "without-records").state == "success"
    (row,) = ledger(tmp_path)
    assert (row["sensor"], row["celsius"], row["readings"]) == ("hall", 21.0, 3)
    assert verify(str(tmp_path / "log")).violations == []
    sys.modules.pop("streamsem_readings", None)


@pytest.mark.spark
def test_views_of_an_hour_are_counted_once_although_a_run_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag

    def arrive_views(name: str, *views: tuple[str, str]) -> None:
        (tmp_path / "arrivals").mkdir(exist_ok=True)
        lines = [json.dumps({"page": "home", "user": user, "at": f"2026-01-01T{at}Z"}) for user, at in views]
        (tmp_path / "arrivals" / name).write_text("\n".join(lines) + "\n")

    initialise_airflow()
    monkeypatch.setenv("STREAMSEM_COUNTS_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    sys.modules.pop("streamsem_counts", None)
    import streamsem_counts

    dag = streamsem_counts.streamsem_counts()
    arrive_views("1.json", ("ann", "12:01:00"), ("bob", "12:59:00"))
    assert run_dag(dag, "first").state == "success"
    arrive_views("2.json", ("ann", "12:50:00"), ("ann", "13:30:00"))
    assert run_dag(dag, "second").state == "success"
    assert run_dag(dag, "second", clear=["count"]).state == "success"
    assert run_dag(dag, "without-records").state == "success"
    (row,) = ledger(tmp_path)
    assert (row["page"], row["views"], row["users"]) == ("home", 3, 2)
    assert verify(str(tmp_path / "log")).violations == []
    sys.modules.pop("streamsem_counts", None)


@pytest.mark.spark
def test_each_order_is_written_once_as_paid_or_unpaid_although_its_payment_is_in_another_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag

    def arrive_in(directory: str, name: str, *records: dict[str, Any]) -> None:
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / name).write_text("".join(json.dumps(record) + "\n" for record in records))

    def order(id: int, at: str) -> dict[str, Any]:
        return {"id": id, "shop": "north", "at": f"2026-01-01T{at}:00Z"}

    def payment(order_id: int, at: str) -> dict[str, Any]:
        return {"order_id": order_id, "cents": 100, "paid_at": f"2026-01-01T{at}:00Z"}

    initialise_airflow()
    monkeypatch.setenv("STREAMSEM_SHOP_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    sys.modules.pop("streamsem_shop", None)
    import streamsem_shop

    dag = streamsem_shop.streamsem_shop()
    arrive_in("orders", "1.json", order(1, "12:00"), order(2, "12:05"))
    arrive_in("payments", "1.json")
    assert run_dag(dag, "first").state == "success"
    arrive_in("payments", "2.json", payment(1, "12:10"), payment(3, "13:40"))
    arrive_in("orders", "2.json", order(3, "13:30"))
    assert run_dag(dag, "second").state == "success"
    assert run_dag(dag, "second", clear=["match"]).state == "success"
    assert run_dag(dag, "without-records").state == "success"
    arrive_in("payments", "3.json", payment(2, "12:20"))
    assert run_dag(dag, "late").state == "success"
    assert sorted((row["id"], row["paid"]) for row in ledger(tmp_path)) == [(1, True), (2, False), (3, True)]
    (late,) = open_log(str(tmp_path / "log")).quarantined()
    assert json.loads(late["raw"])["order_id"] == 2
    assert verify(str(tmp_path / "log")).violations == []
    sys.modules.pop("streamsem_shop", None)


def test_airflow_loads_every_example() -> None:
    bag = dag_files().DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    assert bag.import_errors == {}
    assert {name.removesuffix("_report") for name in bag.dag_ids} >= set(EXAMPLES)


def test_examples_are_parsed_without_loading_an_engine_or_a_client() -> None:
    code = textwrap.dedent(f"""
        import importlib, json, sys
        import airflow.sdk
        before, found = set(sys.modules), {{}}
        heavy = {{"pyspark", "boto3", "botocore", "pyarrow", "rich", "py4j", "pandas", "confluent_kafka", "requests"}}
        for name in {list(EXAMPLES)!r}:
            importlib.import_module(name)
            found[name] = sorted(heavy & (set(sys.modules) - before))
        print(json.dumps(found))
    """)
    environment = {**os.environ, "PYTHONPATH": os.environ["AIRFLOW__CORE__DAGS_FOLDER"]}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(process.stdout.splitlines()[-1]) == {name: [] for name in EXAMPLES}
