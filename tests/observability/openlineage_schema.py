"""Checks OpenLineage events against the published schema, using the classes that the OpenLineage client generates from it."""

from __future__ import annotations

import enum
import json
import types
import typing
from pathlib import Path
from typing import Any

import attr
import jsonschema
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.generated import base
from openlineage.client.serde import Serde

FACET = json.loads((Path(__file__).parents[2] / "docs" / "facets" / "StreamsemBatchesRunFacet.json").read_text())


def as_sent(lineage: Any) -> dict[str, Any]:
    """Return the event with this lineage as OpenLineage's client sends it."""
    event = RunEvent(
        eventTime="2026-01-01T00:00:00Z", producer="https://example.org/test", eventType=RunState.COMPLETE,
        run=Run(runId="01890a5d-ac96-774b-bcce-b302099a8057", facets=lineage.run_facets), job=Job(namespace="n", name="d.t"),
        inputs=lineage.inputs, outputs=lineage.outputs,
    )  # fmt: skip
    sent: dict[str, Any] = json.loads(Serde.to_json(event))
    return sent


def conforms(value: Any, hint: Any, where: str = "$") -> None:
    """
    Raise unless JSON has the shape of a generated class: every required field, no other field, each with its type.

    A facet is checked against the class that its ``_schemaURL`` names, and this package's facet against its schema in docs/.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (fitting,) = (each for each in inner if each is not type(None))
        if value is not None:
            conforms(value, fitting, where)
    elif origin is list:
        assert type(value) is list, where
        for number, item in enumerate(value):
            conforms(item, inner[0], f"{where}[{number}]")
    elif origin is dict:
        assert type(value) is dict, where
        for key, item in value.items():
            conforms(item, inner[1], f"{where}.{key}")
    elif attr.has(hint):
        _conforms_to_class(value, hint, where)
    elif issubclass(hint, enum.Enum):
        assert value in [member.value for member in hint], where
    else:
        assert type(value) is hint, where


def _conforms_to_class(value: Any, hint: Any, where: str) -> None:
    assert type(value) is dict, where
    if issubclass(hint, base.BaseFacet):
        assert "_schemaURL" in value, f"{where}: no _schemaURL"
        if value["_schemaURL"].startswith("urn:streamsem:"):
            _conforms_to_ours(value)
            return
        hint = published()[value["_schemaURL"]]
    fields = {field.name: field for field in attr.fields(hint)}
    required = {name for name, field in fields.items() if field.default is attr.NOTHING} | ({"_producer"} & set(fields))
    assert required <= set(value) <= set(fields), f"{where}: {sorted(value)}"
    hints = typing.get_type_hints(hint)
    for name, item in value.items():
        conforms(item, hints[name], f"{where}.{name}")


def _conforms_to_ours(value: Any) -> None:
    reference = value["_schemaURL"].removeprefix(FACET["$id"])
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator({**FACET, "$ref": reference}, format_checker=checker).validate(value)


def published() -> dict[str, Any]:
    """Return the facet classes of OpenLineage's client by the URL of their published schema."""
    from openlineage.client import facet_v2

    modules = [
        getattr(facet_v2, name) for name in dir(facet_v2) if isinstance(getattr(facet_v2, name), types.ModuleType)
    ]
    classes = [
        cls for module in modules for cls in vars(module).values() if attr.has(cls) and hasattr(cls, "_get_schema")
    ]
    return {cls._get_schema(): cls for cls in classes if isinstance(cls, type)}


def check_event(lineage: Any) -> dict[str, Any]:
    sent = as_sent(lineage)
    conforms(sent, RunEvent)
    return sent
