"""Pickles the functions of a transform, so that executors can run them. This module imports pyspark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pyspark import cloudpickle

_INSTALLED = ("/site-packages/", "/dist-packages/", f"{sys.base_prefix}/lib/", f"{sys.base_prefix}/lib64/")


@contextmanager
def by_value() -> Iterator[None]:
    """
    Within the block, pickle functions of modules that are not installed packages by value instead of by reference.

    An executor cannot import a DAG file, or a module that only the driver has. Functions of installed packages are pickled by reference, because executors
    import these packages.
    """
    known = cloudpickle.list_registry_pickle_by_value()
    modules = [
        module for name, module in sorted(sys.modules.items()) if name not in known and _is_only_here(name, module)
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_only_here(name: str, module: ModuleType) -> bool:
    """Return whether a top-level module is not in a directory of installed packages. ``__main__`` is excluded, because it is always pickled by value."""
    if "." in name or name == "__main__" or name == __name__.split(".")[0] or module.__name__ != name:
        return False
    location = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(location) and not any(part in location for part in _INSTALLED)
