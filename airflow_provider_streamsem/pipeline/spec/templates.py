"""
Renders templates in a spec, such as ``{{ run_id }}`` in a path. This module does not import Airflow: a task passes its Jinja environment.

The log stores the rendered spec. So a template must not read Airflow connections and variables, in which deployments store secrets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, from_json

_OF_TASK_INSTANCE = {"dag_id", "map_index", "run_id", "task_id", "try_number"}
_READABLE: dict[str, set[str]] = {
    "conn": set(),
    "dag": {"dag_id"},
    "dag_run": {
        "conf", "dag_id", "data_interval_end", "data_interval_start", "execution_date", "logical_date", "partition_date", "partition_key",
        "run_after", "run_id", "run_type", "start_date",
    },
    "macros": {"datetime", "datetime_diff_for_humans", "ds_add", "ds_format", "ds_format_locale", "random", "time", "timedelta"},
    "self": set(),
    "task": {"task_id"},
    "task_instance": _OF_TASK_INSTANCE,
    "ti": _OF_TASK_INSTANCE,
    "var": set(),
}  # fmt: skip
"""Name of an object that leads to connections, variables or the environment → its attributes that a template may read."""


def holds_templates(pipeline: Pipeline) -> bool:
    """Return whether any string in the spec contains ``{{`` or ``{%``."""
    return _is_template(json.dumps(pipeline.to_json()))


def refuse_secrets(pipeline: Pipeline, environment: Any = None) -> None:
    """
    Refuse templates that may read connections or variables, and templates in ``where``, ``expect`` and ``gates``. Inspects the names that the templates
    use, and renders nothing.

    A template may read only harmless attributes of the objects that lead to secrets, such as ``ti``, and no attribute of any object that starts with ``_``.

    The predicate ``where`` must not contain a template. A run reads all new records, regardless of its logical date. A predicate on the run's date would drop
    the records of other days permanently. In addition, Spark would execute text of the user who triggers a run as SQL, which can call Java methods.

    :param environment: the Jinja environment that renders the templates; default: an environment with Jinja's own delimiters
    """
    if pipeline.where is not None and _is_template(pipeline.where):
        raise InvalidError(
            "the predicate `where` contains a template. Only one run reads each record, whatever the dates of the record and of the run are. Records that the "
            "rendered predicate drops in that run would be lost; nothing was read",
            pipeline=pipeline.name,
            given=pipeline.where,
            accepted="a predicate that is the same in every run; in the transform, compute values that depend on the record",
        )
    if given := [text for text in _texts(pipeline.queries) if _is_template(text)]:
        raise InvalidError(
            "`expect` or `gates` contains a template, and Spark would execute text of the user who triggers a run as SQL; nothing was read",
            pipeline=pipeline.name,
            given=given,
            accepted="predicates and queries that are the same in every run",
        )
    texts = [text for text in _texts(pipeline.without_transform()) if _is_template(text)]
    if not texts:
        return
    from jinja2 import Environment, TemplateSyntaxError

    environment = environment or Environment()
    for text in texts:
        try:
            tree = environment.parse(text)
            refused = _ways_to_secrets(tree)
        except TemplateSyntaxError as error:
            raise InvalidError(
                "a template of the pipeline is not valid Jinja", pipeline=pipeline.name, given=text
            ) from error
        if refused:
            raise InvalidError(
                "a template of a pipeline must not read connections and variables, nor objects that lead to them, because every reader of the log could read "
                "the rendered value",
                pipeline=pipeline.name,
                given=text,
                refused=sorted(refused),
                accepted="conn_id= and log_conn_id= for secrets and for values that differ between deployments; run_id, ds, params, … in templates",
            )


def _ways_to_secrets(tree: Any) -> set[str]:
    """Return the names in a parsed template that may lead to secrets. An object is safe only where a template reads a harmless attribute of it."""
    from jinja2 import nodes

    reads = list(tree.find_all((nodes.Getattr, nodes.Getitem)))
    attributes = [read.attr if isinstance(read, nodes.Getattr) else getattr(read.arg, "value", None) for read in reads]
    safe = {
        id(read.node)
        for read, attribute in zip(reads, attributes, strict=True)
        if isinstance(read.node, nodes.Name) and attribute in _READABLE.get(read.node.name, ())
    }
    objects = {name.name for name in tree.find_all(nodes.Name) if name.name in _READABLE and id(name) not in safe}
    return objects | {name for name in attributes if isinstance(name, str) and name.startswith("_")}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def rendered(pipeline: Pipeline, environment: Any, context: Mapping[str, Any], *, where: str) -> Pipeline:
    """Return a copy of the pipeline with its templates rendered, or the pipeline itself without templates. ``environment`` must render them to strings."""
    if not holds_templates(pipeline):
        return pipeline
    refuse_secrets(pipeline, environment)
    from jinja2 import StrictUndefined, meta

    strict_environment = environment.overlay(finalize=_require_value, undefined=StrictUndefined)

    def render(text: str) -> str:
        try:
            for name in meta.find_undeclared_variables(strict_environment.parse(text)):
                _require_value(context.get(name, ""))
            return str(strict_environment.from_string(text).render(context))
        except Exception as error:
            raise InvalidError(
                "a template of the pipeline has no value in this run",
                pipeline=pipeline.name,
                given=text,
                problem=f"{type(error).__name__}: {error}",
            ).advising(
                "use a value that every run has. A run that an asset event started has no `ds` and no data interval, and a first run has no previous one. "
                "Nothing was read or written."
            ) from error

    return from_json(_rendered(pipeline.without_transform(), render), where=where).replace(transform=pipeline.transform)


class _NoValueError(Exception):
    """An expression in a template evaluates to ``None``."""


def _require_value(value: Any) -> Any:
    """Refuse ``None``, which Jinja would render as "None". Airflow passes some values as proxies, so this function compares the text of the value."""
    if not isinstance(value, str) and str(value) == "None":
        raise _NoValueError("an expression in the template is None")
    return value


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def _rendered(value: Any, render: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return render(value) if _is_template(value) else value
    if isinstance(value, dict):
        return {key: _rendered(item, render) for key, item in value.items()}
    return [_rendered(item, render) for item in value] if isinstance(value, list) else value
