"""Configures Spark's pickler for modules that executors cannot import. pyspark is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any


class PickledOnce:
    """
    A function of modules that executors cannot import. It is pickled once in this process, because to pickle modules by value takes 25 ms.

    :param function: the function, or the class
    :param modules: the modules that executors cannot import
    """

    def __init__(self, function: Callable[..., Any], modules: Sequence[ModuleType]) -> None:
        self._function, self._modules = function, modules

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        return self._function(*arguments, **named)

    @cached_property
    def _pickled(self) -> bytes:
        from pyspark import cloudpickle

        pickle_by_value(*self._modules)
        pickled: bytes = cloudpickle.dumps(self._function)
        return pickled

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        from pyspark import cloudpickle

        return cloudpickle.loads, (self._pickled,)


def pickle_by_value(*modules: ModuleType) -> list[ModuleType]:
    """
    From now on, pickle the functions and classes of the modules by value instead of by reference, because executors need not have this package.

    Spark Connect pickles a function when it sends the plan, so the modules of this package stay registered.

    :returns: the modules that were not registered before
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
