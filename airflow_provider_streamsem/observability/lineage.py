"""
Builds the OpenLineage metadata of a task. This module is imported only if the OpenLineage provider is installed.

Datasets are named by the OpenLineage conventions. Output statistics contain only the rows that *this try* made visible. A try that returned the result of an
earlier run has none, so a sum over all tries counts every row once. The facet ``streamsem_batches`` (``docs/facets/StreamsemBatchesRunFacet.json``) records
offsets and attempts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attr
from airflow.providers.common.compat.openlineage.facet import (
    Dataset,
    InputDataset,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
    RunFacet,
    SchemaDatasetFacet,
    SchemaDatasetFacetFields,
)
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.facet_v2 import data_quality_assertions_dataset as data_quality

from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.expectations import Expect, failed
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.stores.contract import lineage_name
from airflow_provider_streamsem.telemetry import Planned, VersionClosed
from airflow_provider_streamsem.version import __version__

PRODUCER = f"https://pypi.org/project/airflow-provider-streamsem/{__version__}"
SCHEMA = "urn:streamsem:facets:1-0-0:StreamsemBatchesRunFacet#/$defs/StreamsemBatchesRunFacet"


@attr.define
class StreamsemBatchesRunFacet(RunFacet):  # type: ignore[misc]
    """The facet ``streamsem_batches``: the versions that a run closed or left open. The facet's schema describes the fields."""

    pipeline: str
    log: str
    runKey: str
    status: str
    batches: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA


def of_spec(pipeline: Pipeline) -> OperatorLineage:
    """Return the inputs and outputs that the spec names. Locations that contain templates, or that only a connection defines, are left out."""
    try:
        inputs = pipeline.lineage({})
    except StreamsemError:
        inputs = []
    outputs = [lineage_name(sink.location) for sink in pipeline.sinks.values()]
    return OperatorLineage(inputs=_datasets(inputs), outputs=_datasets(outputs))


def _datasets(names: list[tuple[str, str]]) -> list[Any]:
    return [
        Dataset(namespace=n[0], name=n[1])
        for n in names
        if not any(mark in part for part in n for mark in ("{{", "{%"))
    ]


def of_account(account: Account) -> OperatorLineage:
    """Return the inputs, the outputs with their statistics, and the facet of a try."""
    result = account.result
    facet = StreamsemBatchesRunFacet(  # type: ignore[call-arg]  # the producer is an argument of the base class
        pipeline=account.pipeline.name,
        log=account.pipeline.log,
        runKey=account.run_key,
        status="failed" if result is None else result.status,
        batches=[_batch(account, batch) for batch in account.batches.values()],
        producer=PRODUCER,
    )
    return OperatorLineage(
        inputs=_inputs(account),
        outputs=[_output(account, name, sink.location) for name, sink in account.pipeline.sinks.items()],
        run_facets={"streamsem_batches": facet},
    )


def _batch(account: Account, batch: Planned | VersionClosed) -> dict[str, Any]:
    facts: dict[str, Any] = {"version": batch.version, "ranges": {p: list(pair) for p, pair in batch.ranges.items()}}
    if isinstance(batch, Planned):
        return {**facts, "result": "open"}
    return {
        **facts,
        "result": batch.result,
        "attemptId": batch.attempt_id,
        "adopted": batch.version in account.adopted,
        "lost": batch.lost,
        "counts": dict(batch.counts),
    }


def _inputs(account: Account) -> list[Any]:
    datasets = _datasets(account.inputs)
    facets = _assertions(account, account.pipeline.expect, None)
    return (
        [InputDataset(namespace=each.namespace, name=each.name, inputFacets=facets) for each in datasets]
        if facets
        else datasets
    )


def _assertions(account: Account, expect: Mapping[str, Expect], sink: str | None) -> dict[str, Any]:
    """Return the facet with an assertion for each expectation. Without a version that this try committed, it is left out."""
    if not expect or not account.outputs:
        return {}
    found = [data_quality.Assertion(assertion=rule, success=not account.broken[failed(rule, sink)]) for rule in expect]
    return {
        "dataQualityAssertions": data_quality.DataQualityAssertionsDatasetFacet(assertions=found, producer=PRODUCER)
    }


def _output(account: Account, sink: str, location: str) -> Any:
    namespace, name = lineage_name(location)
    facets, statistics = _assertions(account, account.pipeline.sinks[sink].expect, sink), {}
    if sink in account.schemas:
        facets["schema"] = SchemaDatasetFacet(fields=_fields(account.schemas[sink]), producer=PRODUCER)
    if sink in account.outputs:
        output = account.outputs[sink]
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(
            rowCount=output.rows, size=output.bytes, fileCount=output.files, producer=PRODUCER
        )
    return OutputDataset(namespace=namespace, name=name, facets=facets, outputFacets=statistics)


def _fields(schema: str) -> list[Any]:
    return [SchemaDatasetFacetFields(name=f["name"], type=_type(f["type"])) for f in json.loads(schema)["fields"]]


def _type(spark_type: Any) -> str:
    if isinstance(spark_type, str):
        return {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}.get(spark_type, spark_type)
    if spark_type["type"] == "struct":
        return "struct<" + ",".join(f"{f['name']}:{_type(f['type'])}" for f in spark_type["fields"]) + ">"
    if spark_type["type"] == "map":
        return f"map<{_type(spark_type['keyType'])},{_type(spark_type['valueType'])}>"
    return f"array<{_type(spark_type['elementType'])}>" if spark_type["type"] == "array" else str(spark_type["type"])
