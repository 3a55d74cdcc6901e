"""How an error of this package ends a task. This is the only module that maps errors to Airflow exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_streamsem.errors import StreamsemError


@contextmanager
def mapped() -> Iterator[None]:
    """
    Raise errors that are not retryable as ``AirflowFailException``, which fails the task without a retry. Other errors pass unchanged, and Airflow's retries
    apply.
    """
    try:
        yield
    except StreamsemError as error:
        if error.retryable:
            raise
        raise airflow_exception("AirflowFailException")(f"{type(error).__name__}: {error}") from error


def airflow_exception(name: str) -> type[Exception]:
    """Return one of Airflow's exception classes, from the module in which this Airflow release defines it."""
    from importlib import import_module

    sdk = import_module("airflow.sdk.exceptions")
    # Airflow 3.1 defines them in the core.
    found: type[Exception] = getattr(sdk if hasattr(sdk, name) else import_module("airflow.exceptions"), name)
    return found
