"""A Pulsar broker with its bookie in one process, from Maven's jars."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pulsar
import requests

from tests.integration.parts import certificates, install
from tests.integration.parts.server import Server, free_port

_KEY = b"a key of 32 bytes for the tests."
_CONFIGURATION = """
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
listeningInterface=lo
clusterName=standalone
brokerServicePort={port}
webServicePort={admin_port}
brokerServicePortTls={tls_port}
webServicePortTls={tls_admin_port}
tlsCertificateFilePath=server.crt
tlsKeyFilePath=server.key
tlsTrustCertsFilePath={authority}
numIOThreads=2
numHttpServerThreads=8
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerMaxEntriesPerLedger={ledger_entries}
maxMessageSize=1048576
managedLedgerMinLedgerRolloverTimeMinutes=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
brokerDeleteInactiveTopicsEnabled=false
transactionCoordinatorEnabled=false
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
webSocketServiceEnabled=false
loadManagerClassName=org.apache.pulsar.broker.loadbalance.NoopLoadManager
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey=data:;base64,{key}
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:{token}
superUserRoles=etl
"""
_OPENED = (
    "java.base/sun.net", "java.base/java.nio", "java.base/jdk.internal.misc", "java.base/java.lang", "java.base/java.util.zip",
    "java.management/sun.management", "jdk.management/com.sun.management.internal",
)  # fmt: skip


class PulsarServer(Server):
    """
    A server at ``service_url``, with its admin API at ``admin_url``, and on other ports the same with TLS. Every request needs a token that the server has signed.

    :param ledger_entries: maximum number of entries of a ledger
    """

    def __init__(self, home: Path, *, ledger_entries: int = 20) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port, admin_port, self.tls_port, self.tls_admin_port = (free_port() for _ in range(4))
        self.certificates = certificates.make(home / "certificates")
        self.service_url, self.admin_url = f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        key = base64.b64encode(_KEY).decode()
        ports = {
            "port": port,
            "admin_port": admin_port,
            "tls_port": self.tls_port,
            "tls_admin_port": self.tls_admin_port,
        }
        (home / "standalone.conf").write_text(
            _CONFIGURATION.format(
                **ports,
                ledger_entries=ledger_entries,
                authority=self.certificates.authority,
                key=key,
                token=self.token(),
            )
        )
        private, begin, certificate = self.certificates.server.read_text().partition("-----BEGIN CERTIFICATE")
        (home / "server.key").write_text(private)
        (home / "server.crt").write_text(begin + certificate)
        opens = [text for package in _OPENED for text in ("--add-opens", f"{package}=ALL-UNNAMED")]
        memory = ["-Xmx384m", "-XX:MaxDirectMemorySize=384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        main = ["-cp", install.classpath("pulsar"), "org.apache.pulsar.PulsarStandaloneStarter"]
        options = ["--metadata-dir", "meta", "--bookkeeper-dir", "bookie", "--num-bookies", "1", "-nfw", "-nss"]
        argv = [install.java(), *memory, *opens, *main, "--config", "standalone.conf", *options, "-a", "127.0.0.1"]
        super().__init__("pulsar", home, argv, port=admin_port)

    def start(self, *, seconds: float = 90) -> None:
        """Start the process, and wait until the broker is healthy."""
        super().start(seconds=seconds)
        deadline = time.monotonic() + seconds
        while True:
            with suppress(requests.RequestException):
                if (
                    requests.get(f"{self.admin_url}/admin/v2/brokers/health", headers=self._headers, timeout=10).text
                    == "ok"
                ):
                    return
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    @staticmethod
    def token(key: bytes = _KEY) -> str:
        """Return a token that is signed with a key, by default that of the server."""
        return jwt.encode({"sub": "etl"}, key, algorithm="HS256")

    def connection(self, token: str | None = None) -> str:
        """Return an Airflow connection to the server, as JSON."""
        host, _, port = self.service_url.removeprefix("pulsar://").partition(":")
        secret, extra = self.token() if token is None else token, {"admin_url": self.admin_url}
        return json.dumps({"conn_type": "pulsar", "host": host, "port": int(port), "password": secret, "extra": extra})

    def tls_connection(self, authority: Path | None) -> str:
        """
        Return an Airflow connection to the server with TLS, as JSON.

        :param authority: the file with certificates of authorities; ``None``: those of the package certifi
        """
        extra = {"admin_url": f"https://127.0.0.1:{self.tls_admin_port}", "tls": True}
        if authority is not None:
            extra["tls_ca_file"] = str(authority)
        return json.dumps({**json.loads(self.connection()), "port": self.tls_port, "extra": extra})

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token()}"}

    @contextmanager
    def _client(self) -> Iterator[Any]:
        client = pulsar.Client(
            self.service_url,
            authentication=pulsar.AuthenticationToken(self.token()),
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
        try:
            yield client
        finally:
            client.close()

    def admin(self, method: str, path: str, body: Any = None) -> requests.Response:
        """Send a request to the admin API, which must succeed."""
        url = f"{self.admin_url}/admin/v2/{path}"
        response = requests.request(method, url, json=body, headers=self._headers, timeout=30)
        assert response.ok, f"{method} {path}: {response.status_code} {response.text[:500]}"
        return response

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic with partitions."""
        self.admin("PUT", f"persistent/public/default/{topic}/partitions", partitions)

    def put(self, topic: str, messages: Iterable[bytes | None], *, batch: int = 1, **more: Any) -> None:
        """
        Send messages to a topic, or to a partition such as ``orders-partition-0``, and wait until they are stored.

        :param batch: number of messages in an entry
        :param more: arguments of ``Producer.send_async``, such as ``partition_key``
        """
        with self._client() as client:
            producer = client.create_producer(
                f"persistent://public/default/{topic}",
                batching_enabled=batch > 1,
                batching_max_messages=max(batch, 2),
                batching_max_publish_delay_ms=1_000,
                block_if_queue_full=True,
            )
            for message in messages:
                producer.send_async(message, lambda *_: None, **more)
            producer.flush()

    def put_chunked(self, topic: str, message: bytes) -> None:
        """Send a message as several entries of at most a megabyte."""
        with self._client() as client:
            name = f"persistent://public/default/{topic}"
            producer = client.create_producer(name, batching_enabled=False, chunking_enabled=True)
            producer.send(message)

    def ledgers(self, partition: str) -> list[int]:
        """Return the ids of the ledgers of a partition, in ascending order."""
        stats = self.admin("GET", f"persistent/public/default/{partition}/internalStats").json()
        return sorted(ledger["ledgerId"] for ledger in stats["ledgers"])

    def close_ledger(self, partition: str) -> None:
        """Close the newest ledger of a partition. Later messages are in another one."""
        self.admin("PUT", f"persistent/public/default/{partition}/unload")

    def trim(self, partition: str, *, below: int) -> None:
        """
        Delete ledgers of a partition, as retention does.

        :param below: the oldest ledger to keep. A subscription needs its messages
        """
        self.admin("PUT", f"persistent/public/default/{partition}/subscription/keep", {"ledgerId": below, "entryId": 0})
        before = [ledger for ledger in self.ledgers(partition) if ledger < below]
        self.admin("POST", "namespaces/public/default/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        try:
            self.close_ledger(partition)
            deadline = time.monotonic() + 60
            while set(before) & set(self.ledgers(partition)):
                assert time.monotonic() < deadline, "no ledger was deleted"
                self.admin("POST", f"persistent/public/default/{partition}/trim")
                time.sleep(0.2)
        finally:
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            self.admin("POST", "namespaces/public/default/retention", forever)
