"""Lets a task wait for its turn: while another writer has a version open, the scheduler starts the task again later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import airflow
from airflow.sdk import timezone
from packaging.version import Version

from airflow_provider_streamsem.arguments import seconds
from airflow_provider_streamsem.errors import OpenVersionError
from airflow_provider_streamsem.hooks.failures import airflow_exception

logger = logging.getLogger(__name__)


class WaitsForTurn:
    """
    Part of an operator whose task plans a version that reads no records.

    :attr patience_s: how long the task waits, in seconds from its first start
    """

    patience_s: float
    retry_delay: timedelta

    def set_patience(self, patience: timedelta | float) -> None:
        """Validate the argument ``patience``: integer seconds or a ``timedelta``, 1 second or more."""
        self.patience_s = seconds("patience", patience)

    @contextmanager
    def waiting_for_turn(self, context: Any) -> Iterator[None]:
        """
        Let Airflow start the task again later if the block raises ``OpenVersionError``.

        Before Airflow 3.3, the scheduler ignores the time of the next start for tasks that are no sensors. Then the error counts as a try.
        """
        try:
            yield
        except OpenVersionError as error:
            ti, now = context["ti"], timezone.utcnow()
            next_start = now + self.retry_delay
            if Version(airflow.__version__) < Version("3.3"):
                raise
            if next_start - (ti.get_first_reschedule_date(context) or ti.start_date or now) > timedelta(
                seconds=self.patience_s
            ):
                raise
            logger.info("the task waits for its turn until %s: %s", next_start, error)
            raise airflow_exception("AirflowRescheduleException")(next_start) from None
