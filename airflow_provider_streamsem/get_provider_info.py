"""What Airflow reads of this provider. Imports nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Provider metadata, as Airflow's ``provider_info.schema.json`` has it."""
    package = "airflow_provider_streamsem"
    integration = "Streamsem"
    return {
        "package-name": "airflow-provider-streamsem",
        "name": integration,
        "description": "Micro-batch exactly-once ETL on Spark, with an idempotent commit log on S3.",
        "integrations": [
            {"integration-name": integration, "external-doc-url": "", "tags": ["software"]},
        ],
        "operators": [{"integration-name": integration, "python-modules": [f"{package}.operators.micro_batch"]}],
        "task-decorators": [
            {"name": "micro_batch", "class-name": f"{package}.decorators.micro_batch.micro_batch_task"}
        ],
    }
