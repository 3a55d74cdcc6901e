"""How an error of this package ends a task: the one place where that is decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_streamsem.errors import StreamsemError


@contextmanager
def mapped() -> Iterator[None]:
    """Errors that a retry cannot heal fail the task at once; the others are raised as they are, and Airflow's retries apply."""
    try:
        yield
    except StreamsemError as error:
        if error.retryable:
            raise
        raise failed(f"{type(error).__name__}: {error}") from error


def failed(message: str) -> Exception:
    """Airflow's exception for a task that must not be tried again."""
    try:
        from airflow.sdk.exceptions import AirflowFailException
    except ImportError:  # Airflow 3.1
        from airflow.exceptions import AirflowFailException
    made: Exception = AirflowFailException(message)
    return made
