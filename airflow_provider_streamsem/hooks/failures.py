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
        raise airflow_exception("AirflowFailException")(f"{type(error).__name__}: {error}") from error


def airflow_exception(name: str) -> type[Exception]:
    """One of Airflow's exceptions, from where this release of it keeps them."""
    from importlib import import_module

    sdk = import_module("airflow.sdk.exceptions")
    # Airflow 3.1 has them in the core.
    found: type[Exception] = getattr(sdk if hasattr(sdk, name) else import_module("airflow.exceptions"), name)
    return found
