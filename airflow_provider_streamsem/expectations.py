"""Expectations: rules for rows, as SQL predicates (argument ``expect`` of a pipeline and of its sinks)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

FAIL, QUARANTINE, DROP, WARN = "fail", "quarantine", "drop", "warn"
ACTIONS = (FAIL, QUARANTINE, DROP, WARN)
"""What happens to a row that breaks a rule. For a row that breaks several rules, the first of these applies."""
MOST = 60
"""The maximum number of rules of a pipeline or of a sink. A row stores the rules that it breaks as the bits of a ``long``."""
_NAME = r"[^\x00-\x1f\x7f]{1,100}"


@dataclass(frozen=True)
class Expect:
    """
    A rule: a Spark SQL predicate that must be true for a row. A row for which it is false or null breaks the rule.

    The actions are those of expectations in Lakeflow Declarative Pipelines, and ``quarantine``:

    * ``warn``: the row is kept. The rule only counts it.
    * ``drop``: the row is dropped.
    * ``quarantine``: the row is stored with the quarantined records of the log, with the names of the rules that it breaks. It counts towards
      ``limits.max_quarantined``.
    * ``fail``: the attempt fails, and nothing becomes visible. A retry cannot succeed, so the task fails without retries.

    :param predicate: the predicate, without subqueries, over the columns of the rows
    :param on_failure: ``warn``, ``drop``, ``quarantine`` or ``fail``
    :raises InvalidError: an argument is not valid
    """

    predicate: str
    on_failure: str = WARN

    def __post_init__(self) -> None:
        arguments.text("the predicate of Expect", self.predicate)
        arguments.choice("on_failure of Expect", self.on_failure, ACTIONS)


def expectations(where: str, value: object) -> dict[str, Expect]:
    """Return the argument ``expect``: name of a rule → :class:`Expect`, or a table of its arguments in TOML. ``where`` begins the message of an error."""
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} expect must map names of rules to Expect(...)", given=type(value).__name__)
    if len(value) > MOST:
        raise InvalidError(f"{where} expect has too many rules", given=len(value), accepted=f"at most {MOST}")
    return {
        arguments.text(f"{where} the name of a rule", name, pattern=_NAME, accepted="1 to 100 printable characters"): _rule(f"{where} expect {name!r}", rule)
        for name, rule in value.items()
    }  # fmt: skip


def _rule(where: str, value: object) -> Expect:
    if isinstance(value, Expect):
        return value
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} must be Expect(...)", given=type(value).__name__)
    fields = [field.name for field in dataclasses.fields(Expect)]
    arguments.known_keys(where, value, fields)
    if "predicate" not in value:
        raise InvalidError(f"{where} lacks required arguments", missing=["predicate"])
    return Expect(**value)


def set_expectations(where: str, sink: Any) -> None:
    """Validate the field ``expect`` of a sink, which is a frozen dataclass, while it is created."""
    object.__setattr__(sink, "expect", expectations(where, sink.expect))


def failed(rule: str, sink: str | None = None) -> str:
    """Return the name of the count of rows that break a rule: of a pipeline, or of one of its sinks."""
    return f"failed_records.{rule}" if sink is None else f"failed_rows.{sink}.{rule}"
