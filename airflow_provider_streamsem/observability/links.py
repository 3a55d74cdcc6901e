"""
Links of a task instance to its batch and to the Spark UI.

The batch link leads to the page of the version in the web view, or to the page that the deployment sets.

The driver is the process of the task, so the Spark UI exists only while the task runs. Afterwards, the link leads to the Spark history server, if the
deployment sets its URL.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.observability.account import Account
from airflow_provider_streamsem.stores.contract import split_url
from airflow_provider_streamsem.telemetry import Event, SparkStarted
from airflow_provider_streamsem.web.addresses import version_page


def _account(operator: Any) -> Account | None:
    return getattr(operator, "account", None)


class BatchLink(BaseOperatorLink):  # type: ignore[misc]
    """
    Link to the page of a batch: ``[streamsem] batch_url``, filled with the fields of the run's last version.

    Without this option, the link leads to the page of the version in the web view.
    """

    name = "Batch"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL; ``""`` if the run failed or has no version."""
        account, pattern = _account(operator), settings.batch_url()
        if account is None or account.result is None or account.result.version < 0:
            return ""
        result = account.result
        if not pattern:
            conn_id = getattr(operator, "log_conn_id", None) or ""
            return version_page(settings.airflow_url(), result.log, conn_id, result.version)
        scheme, rest = split_url(result.log)
        bucket, _, prefix = rest.partition("/") if scheme != "file" else ("", "", rest)
        key = "/".join(filter(None, [prefix, result.outcome]))
        fields = {"pipeline": result.pipeline, "log": result.log, "version": str(result.version), "bucket": bucket, "key": key}  # fmt: skip
        return pattern.format(**{name: quote(value, safe="") for name, value in fields.items()})


class SparkUiLink(BaseOperatorLink):  # type: ignore[misc]
    """
    Link to the Spark UI of the task's application.

    While the task runs, the link is the URL that :class:`SparkUiListener` pushes as XCom. When the task ends, the page of the history server replaces it.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the page of the history server; ``""`` if ``[streamsem] spark_history_url`` is not set, or if the task used no Spark application."""
        account, history = _account(operator), settings.spark_history_url()
        if account is None or account.spark is None or not history:
            return ""
        return f"{history.rstrip('/')}/history/{quote(account.spark.application_id, safe='')}/jobs/"


class SparkUiListener:
    """A listener that pushes the URL of the Spark UI as the XCom of :class:`SparkUiLink`, as soon as the URL is known."""

    def __init__(self, ti: Any) -> None:
        self._ti = ti
        self._shown = ""

    def __call__(self, event: Event) -> None:
        """Push the URL if the event contains a new one."""
        if isinstance(event, SparkStarted) and event.ui and event.ui != self._shown:
            self._ti.xcom_push(key=SparkUiLink().xcom_key, value=event.ui)
            self._shown = event.ui
