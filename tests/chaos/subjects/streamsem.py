"""KafkaSource → FilesSink on S3, with the log on the same server. The checker uses only boto3 and pyarrow."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.chaos.setting import BUCKET, MAX_ROWS, Setting
from tests.chaos.subjects.contract import Rows, Subject, VisibleRows, rows_of
from tests.integration.parts.s3 import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from airflow_provider_streamsem import Pipeline

ENTRY = re.compile(r"log/\d{8}/\d{12}-(\d+)\.([pc])\.json$")


class Streamsem(Subject):
    title = "this package: KafkaSource → FilesSink on S3"
    needs = frozenset({"s3"})

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._prefix = f"{setting.topic}/"
        self._commits = 0
        self._entries: dict[str, Any] = {}
        self._rows: dict[str, Rows] = {}

    def pipeline(self) -> Pipeline:
        from airflow_provider_streamsem import FilesSink, KafkaSource, Limits, Pipeline

        location = f"s3://{BUCKET}/{self.setting.topic}"
        return Pipeline(
            name="chaos",
            log=f"{location}/log",
            source=KafkaSource(topics=[self.setting.topic], bootstrap_servers=self.setting.bootstrap),
            sinks={"out": FilesSink(path=f"{location}/out")},
            limits=Limits(max_rows=MAX_ROWS),
            require="exactly_once",
        )

    def drain(self, run_key: str) -> bool:
        from airflow_provider_streamsem import run_batch
        from airflow_provider_streamsem.spark.spark_engine import SparkEngine

        engine = SparkEngine(master=self.setting.master, conf=self._conf())
        return run_batch(self.pipeline(), run_key=run_key, drain=True, engine=engine).status == "empty"

    def _conf(self) -> dict[str, str]:
        from tests.integration.parts.spark import session_conf

        return session_conf()

    # The checker. It uses no code of the package.

    @cached_property
    def _s3(self) -> Any:
        config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5)
        return boto3.client(
            "s3", endpoint_url=self.setting.s3_endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1", config=config,
        )  # fmt: skip

    def _keys(self, below: str) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self._prefix + below)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def _bytes(self, key: str) -> bytes:
        data: bytes = self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data

    def _json(self, key: str) -> Any:
        if key not in self._entries:
            self._entries[key] = json.loads(self._bytes(key))
        return self._entries[key]

    def commits(self) -> int:
        with suppress(BotoCoreError, ClientError):  # the fault may have stopped the S3 server
            self._commits = sum(key.endswith(".c.json") for key in self._keys("log/log/"))
        return self._commits

    def files_written(self) -> int:
        with suppress(BotoCoreError, ClientError):
            return len(self._keys("out/data/"))
        return 0

    def newest(self) -> tuple[int, bool]:
        """Return the newest planned version, or -1 before the first, and whether it is committed or aborted."""
        entries = {(int(m[1]), m[2]) for key in self._keys("log/log/") if (m := ENTRY.search(key))}
        version = max((n for n, _ in entries), default=-1)
        return version, (version, "c") in entries

    def files_of(self, version: int) -> list[str]:
        """Return the keys of the data files that all attempts at a version wrote."""
        return self._keys(f"out/data/{version}/")

    def state(self) -> str:
        newest, is_committed = self.newest()
        if newest < 0:
            return "before the first plan"
        if is_committed:
            return f"version {newest} committed"
        staged = "staged" if self._keys(f"log/attempts/{newest}/") else "planned"
        return f"version {newest} {staged}, {len(self.files_of(newest))} data files"

    def visible(self) -> VisibleRows:
        rows = VisibleRows()
        for key in self._keys("log/log/"):
            if key.endswith(".c.json"):
                outcome = self._json(key)
                if outcome["result"] == "commit":
                    for file in self._sinks(outcome)["out"]["files"]:
                        self._add(rows, f"{self._prefix}out/{file['key']}")
        return rows

    def _sinks(self, outcome: Any) -> Any:
        sinks = outcome["sinks"]
        return self._json(f"{self._prefix}log/spill/{sinks['$spill']}.json") if "$spill" in sinks else sinks

    def _add(self, rows: VisibleRows, key: str) -> None:
        if key not in self._rows:
            self._rows[key] = rows_of(io.BytesIO(self._bytes(key)))  # raises if a file that an outcome names is missing
        rows.add(self._rows[key])


class StreamsemOnACluster(Streamsem):
    title = "this package, executors on a standalone cluster"
    needs = frozenset({"s3", "cluster"})

    def _conf(self) -> dict[str, str]:
        aws = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        secret = {
            "spark.hadoop.fs.s3a.access.key": aws.pop("AWS_ACCESS_KEY_ID"),
            "spark.hadoop.fs.s3a.secret.key": aws.pop("AWS_SECRET_ACCESS_KEY"),
        }
        executor_env = {f"spark.executorEnv.{key}": value for key, value in aws.items()}
        # One core for each driver, so that each of two concurrent runners gets an executor.
        return {**super()._conf(), **secret, **executor_env, "spark.executor.memory": "512m", "spark.cores.max": "1"}
