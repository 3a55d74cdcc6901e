"""Shows how the rows and the state of a fork differ from those of the original, and those of a held version from the visible ones (``streamsem diff``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.cli.output import CommandResult, Table
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.readers.diff import diff
from airflow_provider_streamsem.readers.diff import opened as opened
from airflow_provider_streamsem.readers.diff_state import StateDifference, diff_state
from airflow_provider_streamsem.readers.files import CommittedLog
from airflow_provider_streamsem.readers.held import diff_held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compared(
    spark: SparkSession, logs: tuple[CommittedLog, CommittedLog, int], *, sink: str | None, limit: int
) -> CommandResult:
    """
    Compare a fork with its original. The exit code is 1 if rows, offsets, watermarks or compared states differ.

    :param logs: the fork, the original, and the version of the fork (:func:`airflow_provider_streamsem.readers.diff.opened`)
    :param limit: number of different rows to show, also of each state
    """
    fork_log, original_log, version = logs
    difference = diff(spark, fork_log, original_log, sink=sink)
    totals, rows = _totals_and_first(difference.rows, limit)
    states = [_state_document(state, limit) for state in diff_state(spark, fork_log, original_log)]
    lines = [f"compared columns {', '.join(difference.columns)}"]
    sides = {"original": difference.original, "fork": difference.fork}
    for name, side in sides.items():
        lines.append(
            f"{name}: {side.rows} rows after version {version} of the original, {totals[name]} of them only there"
        )
        lines += [f"{name}: columns only there: {', '.join(side.columns)}"] if side.columns else []
    if not difference.is_comparable:
        lines.append(
            "offsets or watermarks differ, so rows may differ that will be equal later: run both until a run finds nothing, then compare again"
        )
    document = {
        "columns": list(difference.columns),
        **{name: {**plain(side), "different_rows": totals[name]} for name, side in sides.items()},
        "is_comparable": difference.is_comparable,
        "rows": rows,
        "state": states,
    }
    lines += [_state_line(state) for state in states]
    found = {"different rows": rows, **{f"different {_state_name(state)}": state["rows"] for state in states}}
    tables = [_table_of_rows(title, shown) for title, shown in found.items() if shown]
    code = 1 if tables or not difference.is_comparable else 0
    return CommandResult(document=document, lines=lines, tables=tables, exit_code=code)


def held_compared(
    spark: SparkSession, opened: CommittedLog, version: int, *, sink: str | None, attempt_id: str | None, limit: int
) -> CommandResult:
    """
    Compare a held version with the rows that it would replace, or show the rows of a held batch. The exit code is 1 if rows differ.

    :param limit: number of different rows to show
    """
    found = diff_held(spark, opened, version, sink=sink, attempt_id=attempt_id)
    totals, rows = _totals_and_first(found.rows, limit)
    replaced = "no rows" if found.replaces is None else f"version {found.replaces}"
    lines = [f"version {version}, attempt {found.attempt_id}, would replace {replaced}"]
    lines.append(f"compared columns {', '.join(found.columns)}")
    for side, count in found.counts.items():
        lines.append(f"{side}: {count} rows, {totals.get(side, 0)} of them only there")
        only = found.columns_only_in[side]
        lines += [f"{side}: columns only there: {', '.join(only)}"] if only else []
    document = {
        "version": version,
        "attempt_id": found.attempt_id,
        "replaces": found.replaces,
        "columns": list(found.columns),
        **{
            side: {"rows": count, "columns": list(found.columns_only_in[side]), "different_rows": totals.get(side, 0)}
            for side, count in found.counts.items()
        },
        "rows": rows,
    }
    tables = [_table_of_rows("different rows", rows)] if rows else []
    return CommandResult(document=document, lines=lines, tables=tables, exit_code=1 if rows else 0)


def _totals_and_first(different: DataFrame, limit: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return side → number of rows that only this side has, and the first ``limit`` of these rows."""
    different = different.persist()  # otherwise each of the two queries reads both logs again
    sums = different.groupBy("only_in").agg({"times": "sum"}).collect()
    totals = {"original": 0, "fork": 0, **{only_in: int(times) for only_in, times in sums}}
    first = [row.asDict() for row in different.orderBy("row", "only_in").limit(limit).collect()]
    different.unpersist()
    return totals, first


def _state_document(compared: StateDifference, limit: int) -> dict[str, Any]:
    totals, rows = ({}, []) if compared.rows is None else _totals_and_first(compared.rows, limit)
    sides = {
        side: {"rows": count, "different_rows": totals.get(side, 0)}
        for side, count in (("original", compared.original), ("fork", compared.fork))
    }
    return {
        "operator": compared.operator,
        "name": compared.name,
        **sides,
        "rows": rows,
        "not_compared": compared.reason,
    }


def _state_name(state: Mapping[str, Any]) -> str:
    return f"state of operator {state['operator']} {state['name']}"


def _state_line(state: Mapping[str, Any]) -> str:
    name = _state_name(state)
    if state["not_compared"]:
        return f"{name}: NOT COMPARED: {state['not_compared']}"
    sides = [f"{side} {state[side]['rows']} rows, {state[side]['different_rows']} of them only there" for side in ("original", "fork")]  # fmt: skip
    return f"{name}: {'; '.join(sides)}"


def _table_of_rows(title: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    shown = [[row["only_in"], str(row["times"]), row["row"]] for row in rows]
    return Table(title=title, columns=["only in", "times", "row"], rows=shown, folded=["row"])
