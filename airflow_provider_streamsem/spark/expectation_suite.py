"""Validates staged rows with a suite of Great Expectations (extra ``gx``)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ANALYTICS = "GX_ANALYTICS_ENABLED"
"""Great Expectations sends events about its use, unless this variable is ``false``."""


def is_suite(check: object) -> bool:
    """Return whether an object is a suite. Imports nothing."""
    return any(f"{each.__module__}.{each.__name__}" == _SUITE for each in type(check).__mro__)


_SUITE = "great_expectations.core.expectation_suite.ExpectationSuite"


def problems(suite: Any, frame: DataFrame) -> list[str]:
    """
    Return a sentence for each expectation of the suite that the rows do not satisfy, or that cannot be evaluated.

    The sentences name the expectation and its column. They contain no values of rows, which the results of the library may contain.
    """
    os.environ.setdefault(_ANALYTICS, "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    definition = context.data_sources.add_spark("staged").add_dataframe_asset("rows")
    batch = definition.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": frame})
    result = batch.validate(gx.ExpectationSuite(name=suite.name, expectations=list(suite.expectations)), result_format="BOOLEAN_ONLY")  # fmt: skip
    return [_problem(each) for each in result.results if not each.success]


def _problem(result: Any) -> str:
    configured = result.expectation_config
    columns = [
        str(configured.kwargs[name])
        for name in ("column", "column_A", "column_B", "column_list", "column_set")
        if configured.kwargs.get(name) is not None
    ]
    of = f" of {', '.join(columns)}" if columns else ""
    failed = any(
        isinstance(each, dict) and each.get("raised_exception")
        for each in [result.exception_info or {}, *(result.exception_info or {}).values()]
    )
    return f"{configured.type}{of} {'cannot be evaluated' if failed else 'is not satisfied'}"
