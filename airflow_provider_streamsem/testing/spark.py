"""A Spark session for tests, with settings for small batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_streamsem.spark import java
from airflow_provider_streamsem.spark.spark_engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def local_session(location: str) -> Iterator[SparkSession]:
    """
    Yield a Spark session with two threads, two shuffle partitions and time zone UTC, and stop it after the block.

    A session that is already active is yielded unchanged, and not stopped.

    :param location: a directory for Spark's warehouse
    :raises InvalidError: neither ``JAVA_HOME`` nor the ``PATH`` has a Java runtime, or pyspark is not installed
    :raises StageError: Spark did not start
    """
    engine = SparkEngine(
        master="local[2]",
        conf={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",  # for small batches
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": os.path.join(location, "warehouse"),
        },
    )
    java.check()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the host name may not resolve
    started = _active() is None
    session = engine.session()
    if started:
        session.sparkContext.setLogLevel("OFF")
        # py4j logs when the process ends. At that time pytest has closed the streams, so logging would print errors.
        logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        yield session
    finally:
        if started:
            session.stop()


def _active() -> SparkSession | None:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return None
    session: SparkSession | None = SparkSession.getActiveSession()
    return session
