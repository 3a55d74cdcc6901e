"""
Links of a task instance: to its batch, and to Spark's pages.

Neither is guessed. The log has no pages of its own, so the batch's link is a pattern that the deployment sets, and without one there is no link. Spark's own
pages live as long as the driver, which is the task: their address is shown while the task runs, and afterwards the history server's, where one is set.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.stores.contract import split_url
from airflow_provider_streamsem.telemetry import Event, SparkFound


def _account(operator: Any) -> Account | None:
    return getattr(operator, "account", None)


class BatchLink(BaseOperatorLink):  # type: ignore[misc]
    """Where the deployment shows a batch: ``[streamsem] batch_url`` filled with the run's last version."""

    name = "Batch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address, ``""`` where none is set or the run has no version."""
        account, pattern = _account(operator), settings.batch_url()
        if account is None or account.result is None or account.result.version < 0 or not pattern:
            return ""
        result = account.result
        scheme, rest = split_url(result.log)
        bucket, _, prefix = rest.partition("/") if scheme != "file" else ("", "", rest)
        key = "/".join(filter(None, [prefix, result.outcome]))
        fields = {"pipeline": result.pipeline, "log": result.log, "version": str(result.version), "bucket": bucket, "key": key}  # fmt: skip
        return pattern.format(**{name: quote(value, safe="") for name, value in fields.items()})


class SparkUiLink(BaseOperatorLink):  # type: ignore[misc]
    """Spark's pages of the task's application. Pushed by :class:`SparkUiListener` while the task runs, and replaced when it ends."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The history server's page, ``""`` where ``[streamsem] spark_history_url`` is not set or no Spark was used."""
        account, history = _account(operator), settings.spark_history_url()
        if account is None or account.spark is None or not history:
            return ""
        return f"{history.rstrip('/')}/history/{quote(account.spark.application_id, safe='')}/jobs/"


class SparkUiListener:
    """Shows the address of Spark's own pages as soon as it is known."""

    def __init__(self, ti: Any) -> None:
        self._ti = ti
        self._shown = ""

    def __call__(self, event: Event) -> None:
        """Push the link once."""
        if isinstance(event, SparkFound) and event.ui and event.ui != self._shown:
            self._ti.xcom_push(key=SparkUiLink().xcom_key, value=event.ui)
            self._shown = event.ui
