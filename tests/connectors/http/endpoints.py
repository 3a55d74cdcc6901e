"""An HTTP endpoint on the loopback interface. It records every call and replies as the test defines."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Call:
    """One received call."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in (self.body if isinstance(self.body, list) else [self.body])]


Reply = int | str | tuple[int, dict[str, str]]


@dataclass
class Recorder:
    """
    An endpoint that records calls.

    ``calls`` has every call that was performed, in order. ``received`` has every call that was received.

    ``reply_to`` returns the status for a call. ``"lost"`` performs the call and closes the connection. ``"silent"`` performs it and does not reply in time.
    ``"dropped"`` closes the connection before the call is performed. A status of 4xx or 3xx does not perform the call, one of 5xx performs it. A status with
    headers does not perform it.
    """

    reply_to: Callable[[Call], Reply] = lambda call: 200
    calls: list[Call] = field(default_factory=list)
    received: list[Call] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/effects"

    def ids(self) -> Counter[int]:
        """Count how often the effect of each record took place."""
        return Counter(record for call in self.calls for record in call.ids)

    def table(self) -> dict[str, Any]:
        """Return the state of an endpoint that performs each idempotency key once."""
        values: dict[str, Any] = {}
        for call in self.calls:
            values.setdefault(call.key, call.body)
        return values


def _handler(recorder: Recorder) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.command, self.path, headers, json.loads(body) if body else None)
            recorder.received.append(call)
            reply = recorder.reply_to(call)
            reply, extra = reply if isinstance(reply, tuple) else (reply, {})
            if reply == "dropped":
                self.close_connection = True
                return
            if not extra and (isinstance(reply, str) or reply < 300 or reply >= 500):
                recorder.calls.append(call)
            if reply == "silent":
                time.sleep(1.5)
            if isinstance(reply, str):
                self.close_connection = True
                return
            self.send_response_only(reply)
            for name, value in extra.items():
                self.send_header(name, value)
            if 300 <= reply < 400:
                self.send_header("Location", f"http://127.0.0.1:{recorder.port}/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_PUT = do_PATCH = do_GET = _handle

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def serving(recorder: Recorder) -> Iterator[Recorder]:
    """Serve at ``recorder.port``, or at a free port if it is 0."""
    ThreadingHTTPServer.allow_reuse_address = True
    server = ThreadingHTTPServer(("127.0.0.1", recorder.port), _handler(recorder))
    server.daemon_threads = True
    recorder.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
