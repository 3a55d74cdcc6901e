"""Ships a transform to the executors. Imports pyspark."""

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
    Pickle functions of modules that are not installed by value instead of by reference, while the block runs.

    An executor cannot import a DAG file, or a package that only the driver can import. Functions of installed modules are pickled by reference, because
    executors import them.
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
    """Whether a top-level module was loaded from outside the locations of installed modules. ``__main__`` is always pickled by value."""
    if "." in name or name == "__main__" or name == __name__.split(".")[0] or module.__name__ != name:
        return False
    location = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(location) and not any(part in location for part in _INSTALLED)
