"""The non-public names of PySpark on which this package relies. A release of Spark may remove them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pyspark.sql.classic.dataframe as classic
import pyspark.sql.connect.conf as connect_conf
import pyspark.sql.connect.dataframe as connect
import pyspark.sql.connect.observation as connect_observation
import pyspark.sql.connect.session as connect_session
import pytest
from pyspark.core.context import SparkContext
from pyspark.sql import Observation, SparkSession

from airflow_provider_streamsem.connectors import jvm


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (SparkContext, "_gateway _jvm _jsc _lock _active_spark_context _next_accum_id _accumulatorServer"),
        (SparkSession, "_sc _jvm _jsparkSession _instantiatedSession _activeSession"),
        (classic.DataFrame, "_jdf"),
        (Observation, "_jo"),
        (connect.DataFrame, "_plan _session _cached_schema _explain_string"),
        (connect_observation.Observation, "_name _result"),
        (connect_session.SparkSession, "_active_session"),
        (connect_conf.RuntimeConf, "_set_all"),
    ],
)
def test_pyspark_has_the_non_public_names(owner: Any, names: str) -> None:
    source = inspect.getsource(owner)
    missing = [name for name in names.split() if re.search(rf"\b{name}\b", source) is None]
    assert missing == [], f"use the new names of this version of {owner.__module__}"


@pytest.mark.spark
def test_session_and_plan_of_a_frame_are_found_in_the_jvm(spark: SparkSession) -> None:
    frame = spark.range(3)
    assert jvm.session_of(spark).sparkContext().isLocal()
    assert jvm.gateway_of(spark).new_array(jvm.class_of(spark, "java.lang.String"), 2)[0] is None
    (column,) = jvm.elements(jvm.execution_of(frame).analyzed().output())
    assert column.name() == "id"
