"""``make bench ARGS=connect``: Kafka to Parquet with Spark behind Spark Connect, ours against the same peers behind the same server."""

from __future__ import annotations

import os
import tempfile
import uuid
from functools import partial
from pathlib import Path

from airflow_provider_streamsem.engines.spark import SparkEngine
from benchmarks import kafka
from tests.integration.parts.kafka import Broker
from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import running
from tests.integration.parts.spark import ConnectServer


def main() -> None:
    """Both places, both sizes."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        broker, s3 = Broker(home / "kafka"), S3Server(home / "s3")
        with running(broker, s3):
            os.environ.update(s3.environment())
            import boto3

            boto3.client("s3").create_bucket(Bucket="lake")
            server = ConnectServer(home / "connect", s3.s3a_conf())
            with running(server):
                engine = SparkEngine(remote=server.url)
                subjects = {
                    "ours": partial(kafka.ours, engine=engine),
                    "(a) bare read and write": kafka.bare,
                    "(b) streaming, file sink": kafka.stream_to_files,
                }
                places = {
                    "disk": lambda: str(home / "disk" / uuid.uuid4().hex),
                    "s3a": lambda: f"s3://lake/{uuid.uuid4().hex}",
                }
                for where, place in places.items():
                    for rows in (50_000, 1_000):
                        title = f"{kafka.BATCHES} batches of {rows:,} records, Parquet on {where}, by Spark Connect"
                        measured = kafka.measure(engine.session(), broker.bootstrap, place, rows, subjects=subjects)
                        kafka.show(title, ["", "a batch (median)", "ours / this (median of rounds)"], measured)


if __name__ == "__main__":
    main()
