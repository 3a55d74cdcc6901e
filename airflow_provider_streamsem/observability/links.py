"""
Links of a task instance to its batch and to the Spark UI.

No link is guessed. The log has no web pages, so the deployment sets a URL pattern for batches. Without the pattern there is no batch link.

The Spark UI exists only while the driver runs, and the driver is the task. While the task runs, the link leads to the Spark UI. Afterwards it leads to the
Spark history server, if one is set.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.stores.contract import split_url
from airflow_provider_streamsem.telemetry import Event, SparkStarted


def _account(operator: Any) -> Account | None:
    return getattr(operator, "account", None)


class BatchLink(BaseOperatorLink):  # type: ignore[misc]
    """Link to the deployment's page of a batch: ``[streamsem] batch_url`` with the fields of the run's last version."""

    name = "Batch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL, or ``""`` if no pattern is set or the run has no version."""
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
    """
    Link to the Spark UI of the task's application. :class:`SparkUiListener` pushes it while the task runs. The history server's page replaces it when the
    task ends.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the history server's page, or ``""`` if ``[streamsem] spark_history_url`` is not set or the task started no Spark application."""
        account, history = _account(operator), settings.spark_history_url()
        if account is None or account.spark is None or not history:
            return ""
        return f"{history.rstrip('/')}/history/{quote(account.spark.application_id, safe='')}/jobs/"


class SparkUiListener:
    """Pushes the URL of the Spark UI as soon as it is known."""

    def __init__(self, ti: Any) -> None:
        self._ti = ti
        self._shown = ""

    def __call__(self, event: Event) -> None:
        """Push the link, once per URL."""
        if isinstance(event, SparkStarted) and event.ui and event.ui != self._shown:
            self._ti.xcom_push(key=SparkUiLink().xcom_key, value=event.ui)
            self._shown = event.ui
