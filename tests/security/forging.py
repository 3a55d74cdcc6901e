"""Forged entries with valid checksums, as a user with write access to a log can create them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical, sha256
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.memory import MemoryStore

Body = dict[str, Any]


def sealed(body: Body) -> bytes:
    """The bytes of an entry, with the checksum of its other fields."""
    rest = {name: value for name, value in body.items() if name != "checksum"}
    return canonical({**rest, "checksum": sha256(canonical(rest))})


def overwrite(store: Any, key: str, data: bytes) -> None:
    """Replace the bytes of an object, as a user with write access to the bucket can do."""
    assert isinstance(store, (LocalStore, MemoryStore))
    store.delete(key)
    assert store.create(key, data)


def forge(store: Any, key: str, change: Callable[[Body], object]) -> None:
    """Change an entry and update its checksum."""
    body = json.loads(store.read(key))
    change(body)
    overwrite(store, key, sealed(body))


def forge_spec(store: Any, version: int, change: Callable[[Body], object]) -> None:
    """Make an outcome name a changed spec."""
    outcome = json.loads(store.read(keys.outcome(version)))
    spec = json.loads(store.read(keys.spec(outcome["spec"])))
    change(spec)
    data = canonical(spec)
    store.create(keys.spec(sha256(data)), data)
    forge(store, keys.outcome(version), lambda body: body.update(spec=sha256(data)))
