"""How a transform gets to the executors. Imports pyspark."""

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
    While the block runs, functions of modules that are not installed travel to executors as code, not as names.

    A DAG file, or a package that only the driver can import, has no name on an executor. What is installed is left alone: executors import it.
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
    """Whether a top-level module was loaded from a place where nothing is installed. ``__main__`` travels as code anyway."""
    if "." in name or name == "__main__" or name == __name__.split(".")[0] or module.__name__ != name:
        return False
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(place) and not any(part in place for part in _INSTALLED)
