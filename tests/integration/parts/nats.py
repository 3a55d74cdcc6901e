"""A NATS server with JetStream, from its Go module."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_streamsem.connectors.nats.access import Access
from airflow_provider_streamsem.connectors.nats.client import connected
from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port


class NatsServer(Server):
    """
    A server at ``address``. Its streams are files below ``home``, and survive a kill.

    :param configuration: lines of its configuration file, for example for users and TLS
    """

    def __init__(self, home: Path, configuration: str = "") -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.data = home / "data"
        port = free_port()
        self.address_of_clients = f"127.0.0.1:{port}"
        (home / "nats.conf").write_text(f'jetstream {{ store_dir: "{self.data}" }}\n{configuration}\n')
        argv = [install.go_program("nats-server"), "-a", "127.0.0.1", "-p", str(port), "-c", str(home / "nats.conf")]
        super().__init__("nats", home, argv, port=port)

    def ask(self, operation: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to JetStream's API without credentials, and return its response, which must not be an error."""
        with connected(Access(servers=(self.address_of_clients,)), None) as client:
            response = client._request(operation, request or {})
        assert response is not None
        return response

    def create(self, stream: str, **config: Any) -> None:
        """Create a stream with the subjects ``<stream>.>``."""
        self.ask(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], "storage": "file", **config})

    def publish(self, subject: str, data: Iterable[bytes], **headers: str) -> None:
        """Publish messages, and wait for the acknowledgement of the last, which the stream stores after all others."""
        messages = [*data]
        with connected(Access(servers=(self.address_of_clients,)), None) as client:
            connection = client._connection

            async def publish() -> Any:
                for message in messages[:-1]:
                    await connection.publish(subject, message, headers=headers or None)
                return await connection.request(subject, messages[-1], timeout=10, headers=headers or None)

            if messages:
                assert "error" not in json.loads(client._wait(publish()).data)

    def keep(self, copy: Path) -> None:
        """Stop the server, copy its files, and start it again."""
        self.stop()
        shutil.copytree(self.data, copy)
        self.start()

    def restore(self, copy: Path) -> None:
        """Stop the server, replace its files by a copy, and start it again."""
        self.stop()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        self.start()


class Operator:
    """An operator with two accounts, which signs the JWTs of users. Its server accepts only credentials files."""

    def __init__(self) -> None:
        self._operator, self._system, self._account = (_key_pair(prefix) for prefix in (14, 0, 0))
        unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams", "consumer"), -1)  # fmt: skip
        operator = _signed(self._operator, self._operator, "operator", system_account=_public(self._system))
        accounts = {
            _public(each): _signed(self._operator, each, "account", limits={**unlimited, "wildcards": True} if each is self._account else {**unlimited, "mem_storage": 0, "disk_storage": 0})
            for each in (self._system, self._account)
        }  # fmt: skip
        preloaded = "".join(f"  {account}: {jwt}\n" for account, jwt in accounts.items())
        self.configuration = f"operator: {operator}\nsystem_account: {_public(self._system)}\nresolver: MEMORY\nresolver_preload {{\n{preloaded}}}"

    def credentials(self, *, signed_by_another: bool = False) -> str:
        """Return the text of a credentials file of a new user."""
        seed, user = _key_pair(20)
        jwt = _signed(
            _key_pair(0) if signed_by_another else self._account, (seed, user), "user", subs=-1, data=-1, payload=-1
        )
        return f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"


def _key_pair(kind: int) -> tuple[str, Any]:
    """Return the seed and the key pair of an operator (14), an account (0) or a user (20)."""
    import nkeys

    seed = nkeys.encode_seed(os.urandom(32), kind << 3)
    return seed.decode(), nkeys.from_seed(bytearray(seed))


def _public(pair: tuple[str, Any]) -> str:
    return str(pair[1].public_key.decode())


def _signed(issuer: tuple[str, Any], subject: tuple[str, Any], kind: str, **claims: Any) -> str:
    """Return a JWT for ``subject`` that ``issuer`` has signed."""
    parts = (
        {"typ": "JWT", "alg": "ed25519-nkey"},
        {"jti": os.urandom(8).hex(), "iat": 1, "iss": _public(issuer), "sub": _public(subject), "name": kind,
         "nats": {"type": kind, "version": 2, **claims}},
    )  # fmt: skip
    text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_base64(issuer[1].sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
