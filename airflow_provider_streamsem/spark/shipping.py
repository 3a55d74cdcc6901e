"""Pickles the functions of a transform, so that executors can run them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from airflow_provider_streamsem.connectors.pickling import pickle_by_reference, pickle_by_value

_INSTALLED = ("/site-packages/", "/dist-packages/", f"{sys.base_prefix}/lib/", f"{sys.base_prefix}/lib64/")


@contextmanager
def by_value() -> Iterator[None]:
    """
    Within the block, pickle functions of modules that are not installed packages by value instead of by reference.

    An executor cannot import a DAG file, or a module that only the driver has.
    """
    added = pickle_by_value(*(module for name, module in sorted(sys.modules.items()) if _is_only_here(name, module)))
    try:
        yield
    finally:
        pickle_by_reference(*added)


def _is_only_here(name: str, module: ModuleType) -> bool:
    """Return whether a top-level module is not in a directory of installed packages. ``__main__`` is excluded, because it is always pickled by value."""
    if "." in name or name == "__main__" or name == __name__.split(".")[0] or module.__name__ != name:
        return False
    location = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(location) and not any(part in location for part in _INSTALLED)
