"""Maps the errors of this package to Airflow exceptions. No other module does this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_streamsem.errors import StreamsemError


@contextmanager
def as_airflow_failures() -> Iterator[None]:
    """
    Within the block, replace each error that is not retryable by an ``AirflowFailException``, which fails the task without a retry.

    A retryable error passes unchanged, and Airflow retries the task according to its ``retries``.

    :raises AirflowFailException: the block raised an error that is not retryable
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
    # Airflow 3.1 defines the exceptions in airflow.exceptions.
    cls: type[Exception] = getattr(sdk if hasattr(sdk, name) else import_module("airflow.exceptions"), name)
    return cls
