"""Kafka to Parquet on Spark Connect, compared with the same peers on the same server: ``make bench ARGS=connect``."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from benchmarks import kafka
from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer


def main() -> None:
    """Measure both locations and both sizes."""
    with tempfile.TemporaryDirectory() as directory, kafka.servers(home := Path(directory)) as (broker, s3):
        server = ConnectServer(home / "connect", s3.s3a_conf())
        with running(server):
            engine = SparkEngine(remote=server.url)
            subjects = {
                "provider": partial(kafka.run_provider, engine=engine),
                "(a) bare read and write": kafka.bare,
                "(b) streaming, file sink": kafka.stream_to_files,
            }
            kafka.measure_locations(
                engine.session(), broker.bootstrap, home, ", on Spark Connect", subjects=subjects, benchmark="connect"
            )


if __name__ == "__main__":
    main()
