"""Runs a trigger in an event loop of the test. The trigger is created from its serialized form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def from_database(trigger: Any) -> Any:
    """Create the trigger as the triggerer does: from the path and the arguments that Airflow stored as JSON."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))


class Listener:
    """A running trigger. It continues to run between two calls of :meth:`next`."""

    def __init__(self, trigger: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.stream = trigger.run()
        self.pending: asyncio.Task[Any] | None = None

    def next(self, seconds: float = 5.0) -> dict[str, Any] | None:
        """Return the payload of the next event, or ``None`` if there is none in time or the trigger has ended."""

        async def wait() -> None:
            self.pending = self.pending or asyncio.ensure_future(anext(self.stream, None))
            await asyncio.wait({self.pending}, timeout=seconds)

        self.loop.run_until_complete(wait())
        assert self.pending is not None
        if not self.pending.done():
            return None
        event, self.pending = self.pending.result(), None
        return None if event is None else json.loads(json.dumps(event.payload))

    def close(self) -> None:
        async def end() -> None:
            if self.pending is not None:
                self.pending.cancel()
                await asyncio.wait({self.pending})
            await self.stream.aclose()

        self.loop.run_until_complete(end())
        self.loop.close()


@contextmanager
def listening(trigger: Any) -> Iterator[Listener]:
    listener = Listener(from_database(trigger))
    try:
        yield listener
    finally:
        listener.close()
