"""Provider metadata that Airflow reads. This module imports no other module of the package."""

from __future__ import annotations

from typing import Any

_PACKAGE = "airflow_provider_streamsem"
_NAME = "Streamsem"


def get_provider_info() -> dict[str, Any]:
    """Return the provider metadata in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-streamsem",
        "name": _NAME,
        "description": "Micro-batch exactly-once ETL on Spark, with an idempotent commit log on S3.",
        "integrations": [
            {"integration-name": _NAME, "external-doc-url": "", "tags": ["software"]},
        ],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    f"{_PACKAGE}.operators.micro_batch",
                    f"{_PACKAGE}.operators.reprocess",
                    f"{_PACKAGE}.operators.maintenance",
                    f"{_PACKAGE}.operators.compact",
                    f"{_PACKAGE}.operators.erase",
                    f"{_PACKAGE}.operators.actions",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    f"{_PACKAGE}.sensors.{name}" for name in ("committed", "freshness", "offsets", "retention")
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": [f"{_PACKAGE}.triggers.{name}" for name in ("condition", "offsets")],
            }
        ],
        "asset-uris": [
            {
                "schemes": ["streamsem"],
                "handler": f"{_PACKAGE}.assets.normalise",
                "factory": f"{_PACKAGE}.assets.create_asset",
                "to_openlineage_converter": f"{_PACKAGE}.assets.to_openlineage",
            }
        ],
        "hooks": [{"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.hooks.streamsem"]}],
        "connection-types": [_connection_type()],
        "extra-links": [
            f"{_PACKAGE}.observability.links.BatchLink",
            f"{_PACKAGE}.observability.links.SparkUiLink",
        ],
        "task-decorators": [
            {"name": "micro_batch", "class-name": f"{_PACKAGE}.decorators.micro_batch.micro_batch_task"}
        ],
        "cli": [f"{_PACKAGE}.cli.airflow_group.commands"],
        "config": {"streamsem": _configuration()},
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "streamsem",
        "hook-class-name": f"{_PACKAGE}.hooks.streamsem.StreamsemHook",
        "hook-name": _NAME,
        "ui-field-behaviour": {
            "hidden-fields": ["login", "password", "port", "schema"],
            "relabeling": {"host": "Root of the logs"},
            "placeholders": {"host": "s3://bucket/prefix"},
        },
        "conn-fields": {
            "aws_conn_id": _field(
                "AWS connection",
                "Connection with the AWS credentials. If empty: boto3's default credential chain on the worker",
            ),
            "endpoint_url": _field("S3 endpoint", "If empty: the endpoint of the AWS connection, or that of AWS"),
            "region_name": _field("S3 region", "If empty: the region of the AWS connection, or that of the worker"),
        },
    }


def _field(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], "default": None}}


def _configuration() -> dict[str, Any]:
    return {
        "description": "Defaults for tasks that run micro-batches.",
        "options": {
            "spark_conn_id": {
                "description": "Spark connection of tasks that set neither spark_master nor spark_conn_id. If empty: `local[*]`, in the task's process.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "spark_default",
                "default": "",
            },
            "poll_interval": {
                "description": "Seconds between two reads of the log by a task that waits for a driver in another process.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "30",
            },
            "batch_url": {
                "description": "URL pattern of the Batch link of a task instance, with the fields {pipeline}, {version}, {log}, {bucket} and {key}. "
                "If empty: the page of the version in the web view.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "https://s3.console.aws.amazon.com/s3/object/{bucket}?prefix={key}",
                "default": None,
            },
            "show_records": {
                "description": "Whether the web view shows the contents of quarantined records to users who may read the DAG.",
                "version_added": "0.1.0",
                "type": "boolean",
                "example": None,
                "default": "False",
            },
            "web_memory": {
                "description": "MiB of memory that the web view may use for logs in each process of the API server, from 16 on.",
                "version_added": "0.1.0",
                "type": "integer",
                "example": None,
                "default": "256",
            },
            "spark_history_url": {
                "description": "URL of the Spark history server, for the Spark UI link of a task instance that has ended. If empty: no link.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "http://spark-history:18080",
                "default": None,
            },
        },
    }
