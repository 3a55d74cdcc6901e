"""What somebody with write access to a log can put there: entries with right checksums."""

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
    """The bytes of an entry, with the checksum of what it says."""
    rest = {name: value for name, value in body.items() if name != "checksum"}
    return canonical({**rest, "checksum": sha256(canonical(rest))})


def overwrite(store: Any, key: str, data: bytes) -> None:
    """Put other bytes in an object's location: whoever may write to a bucket may do so."""
    assert isinstance(store, (LocalStore, MemoryStore))
    store.delete(key)
    assert store.create(key, data)


def forge(store: Any, key: str, change: Callable[[Body], object]) -> None:
    """Change an entry, and seal it again."""
    body = json.loads(store.read(key))
    change(body)
    overwrite(store, key, sealed(body))


def forge_spec(store: Any, version: int, change: Callable[[Body], object]) -> None:
    """Have an outcome name another spec."""
    outcome = json.loads(store.read(keys.outcome(version)))
    spec = json.loads(store.read(keys.spec(outcome["spec"])))
    change(spec)
    data = canonical(spec)
    store.create(keys.spec(sha256(data)), data)
    forge(store, keys.outcome(version), lambda body: body.update(spec=sha256(data)))
