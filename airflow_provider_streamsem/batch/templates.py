"""Templates inside a spec, such as ``{{ run_id }}`` in a path. Airflow is not imported: a task brings what renders them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from airflow_provider_streamsem.batch.pipeline import Pipeline, from_json


def holds_templates(pipeline: Pipeline) -> bool:
    """Whether any text of the spec is a template."""
    return _is_template(json.dumps(pipeline.to_json()))


def rendered(pipeline: Pipeline, render: Callable[[str], str], *, where: str) -> Pipeline:
    """
    The pipeline with its templates rendered. One object serves every run of a DAG's process, so it is replaced, never changed.

    :param where: names the pipeline in errors
    :raises InvalidError: what a template gave is not acceptable
    """
    if not holds_templates(pipeline):
        return pipeline
    return from_json(_rendered(pipeline.without_transform(), render), where=where).replace(transform=pipeline.transform)


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def _rendered(value: Any, render: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return render(value) if _is_template(value) else value
    if isinstance(value, dict):
        return {key: _rendered(item, render) for key, item in value.items()}
    return [_rendered(item, render) for item in value] if isinstance(value, list) else value
