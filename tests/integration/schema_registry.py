"""A schema registry with two endpoints, and Avro records of two versions of a schema."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import fastavro

V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "user", "type": ["null", "string"], "default": None}],
}
V2 = {**V1, "fields": [*V1["fields"], {"name": "amount", "type": "double", "default": 0.0}]}


def avro(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


class Registry(BaseHTTPRequestHandler):
    """Two endpoints of a schema registry: the versions of a subject, and one version."""

    subjects: ClassVar[dict[str, list[tuple[int, str]]]] = {}
    is_down: ClassVar[bool] = False

    def do_GET(self) -> None:
        parts = self.path.strip("/").split("/")
        versions = self.subjects.get(parts[1], [])
        if self.is_down:
            self.send_error(500)
        elif not versions:
            self.send_error(404)
        else:
            number, schema = versions[int(parts[3]) - 1] if len(parts) == 4 else (0, "")
            body: Any = (
                {"subject": parts[1], "id": number, "version": 1, "schema": schema}
                if len(parts) == 4
                else list(range(1, len(versions) + 1))
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def running_registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Registry.subjects, Registry.is_down = {}, False
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
