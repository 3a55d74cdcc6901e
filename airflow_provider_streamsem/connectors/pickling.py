"""Configures Spark's pickler for modules that executors cannot import. pyspark is imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def pickled_by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    """
    Within the block, pickle the functions and classes of the modules by value instead of by reference.

    Modules that were registered before the block stay registered after it.
    """
    from pyspark import cloudpickle

    registered = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in registered]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
