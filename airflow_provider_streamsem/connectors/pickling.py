"""Configures Spark's pickler for modules that executors cannot import. pyspark is imported on first use."""

from __future__ import annotations

from types import ModuleType


def pickle_by_value(*modules: ModuleType) -> list[ModuleType]:
    """
    Pickle the modules by value from now on, as executors need not have this package. Return the modules that were not registered before.

    Spark Connect pickles a function when it sends the plan, so the modules of this package stay registered.
    """
    from pyspark import cloudpickle

    registered = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in registered]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    return added


def pickle_by_reference(*modules: ModuleType) -> None:
    """Undo :func:`pickle_by_value` for modules that it has registered."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
