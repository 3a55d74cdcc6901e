"""Both Kafka clients authenticate by the properties of one connection, with passwords or tokens."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import KafkaSink, KafkaSource
from airflow_provider_streamsem.connectors.kafka import authentication
from airflow_provider_streamsem.connectors.kafka.authentication import _jaas
from airflow_provider_streamsem.connectors.kafka.client import settings_of
from airflow_provider_streamsem.connectors.kafka.cluster import KafkaCluster, java_settings
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from tests.connectors.kafka.connections import connection_with
from tests.integration.parts import certificates

OAUTH: dict[str, object] = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "oauthbearer",
    "sasl.oauthbearer.method": "OIDC",
    "sasl.oauthbearer.client.id": "etl",
    "sasl.oauthbearer.client.secret": 's"ecret',
    "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
}


def test_token_endpoint_of_the_connection_is_used_by_both_clients() -> None:
    more = {"sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=p"}
    with connection_with({**OAUTH, **more}):
        settings = settings_of("k", None)
    assert settings.items() >= {**OAUTH, **more}.items()
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"
    assert java_settings(settings) == {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f'{module}LoginModule required clientId="etl" clientSecret="s\\"ecret" scope="kafka" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="p";',
        "kafka.sasl.login.callback.handler.class": f"{module}LoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/token",
    }
    assert warnings_of(OAUTH) == []


def warnings_of(extra: dict[str, object]) -> list[str]:
    with connection_with(extra):
        return KafkaSource(topics=["orders"], conn_id="k").warnings()


def test_token_endpoint_without_encryption_is_a_warning() -> None:
    [warning] = warnings_of({**OAUTH, "sasl.oauthbearer.token.endpoint.url": "http://u:pw@idp/token"})
    assert "without encryption" in warning
    assert "pw" not in warning


def test_credentials_that_are_sent_to_a_broker_without_encryption_are_a_warning_of_source_and_sink(
    tmp_path: Path,
) -> None:
    plain = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "pw",
    }
    with connection_with({"bootstrap.servers": "localhost:9092,kafka:9092", **plain}):
        [of_source] = KafkaSource(topics=["orders"], conn_id="k").warnings()
        [of_sink] = KafkaSink(str(tmp_path), topic="orders", conn_id="k").warnings()
    for sender, warning in (("source kafka", of_source), ("sink kafka", of_sink)):
        assert warning.startswith(f"{sender}: the credentials of connection k and every record are sent to kafka")
        assert "pw" not in warning.split()
    with connection_with({"bootstrap.servers": "localhost:9092", **plain}):
        assert KafkaSource(topics=["orders"], conn_id="k").warnings() == []


@pytest.mark.parametrize(
    "change",
    [
        {"sasl.oauthbearer.method": "default"},
        {"sasl.oauthbearer.method": ""},
        {"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"},
        {"sasl.oauthbearer.token.endpoint.url": ""},
        {"sasl.oauthbearer.client.id": ""},
        {"sasl.oauthbearer.client.secret": ""},
    ],
)
def test_oauthbearer_without_a_token_endpoint_over_http_is_refused(change: dict[str, object]) -> None:
    with (
        connection_with({**OAUTH, **change}),
        pytest.raises(InvalidError, match="settings that OAUTHBEARER needs") as caught,
    ):
        settings_of("k", None)
    assert 's"ecret' not in str(caught.value)


MSK: dict[str, object] = {
    "bootstrap.servers": "b-1.demo.x1y2z3.c4.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
}


def test_region_of_a_cluster_of_msk_is_that_of_its_hosts_or_of_the_connection() -> None:
    serverless = "boot-abc.c1.kafka-serverless.ap-northeast-1.amazonaws.com:9098"
    for change, region in (
        ({}, "eu-west-1"),
        ({"bootstrap.servers": serverless}, "ap-northeast-1"),
        ({"bootstrap.servers": "private:9098", "aws.region": "us-gov-west-1"}, "us-gov-west-1"),
    ):
        with connection_with({**MSK, **change}):
            assert authentication._region(settings_of("k", None)) == region


@pytest.mark.parametrize("change", [{"security.protocol": "SASL_PLAINTEXT"}, {"bootstrap.servers": "private:9098"}])
def test_msk_without_encryption_or_region_is_refused(change: dict[str, object]) -> None:
    with connection_with({**MSK, **change}), pytest.raises(InvalidError, match="AWS_MSK_IAM needs"):
        settings_of("k", None)


def test_java_signs_its_own_tokens_for_msk() -> None:
    with connection_with(MSK):
        java = java_settings(settings_of("k", None))
    assert java == {
        "kafka.bootstrap.servers": MSK["bootstrap.servers"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


class Handshake:
    """
    A server that performs the SASL handshake of Kafka over TLS, and then closes the connection.

    :attr mechanisms: the mechanisms that clients named
    :attr tokens: the tokens that clients sent
    """

    def __init__(self, home: Path) -> None:
        self.certificates = certificates.make(home)
        self.mechanisms: list[str] = []
        self.tokens: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificates.server)
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
                with self._context.wrap_socket(connection, server_side=True) as client:
                    while self._answer(client):
                        pass
            except ssl.SSLError:
                continue
            except OSError:
                return

    def _answer(self, client: ssl.SSLSocket) -> bool:
        """Answer one request. Returns whether the connection stays open."""
        request = self._received(client, struct.unpack(">i", self._received(client, 4))[0])
        api, _, correlation, name = struct.unpack(">hhih", request[:10])
        body = request[10 + max(name, 0) :]
        if api == 18:  # ApiVersions: version 0 of SaslHandshake is 17, of SaslAuthenticate 36
            keys = ((17, 1), (18, 0), (36, 0), (3, 4))
            versions = b"".join(struct.pack(">hhh", key, 0, newest) for key, newest in keys)
            # The newest version is unsupported (error 35), so the client asks again with version 0.
            error = 0 if struct.unpack(">hh", request[:4])[1] == 0 else 35
            answer = struct.pack(">hi", error, len(keys)) + versions
        elif api == 17:
            self.mechanisms.append(body[2:].decode())
            answer = struct.pack(">hi", 0, 1) + struct.pack(">h", len(b"OAUTHBEARER")) + b"OAUTHBEARER"
        else:
            sent = body[4:].decode() if api == 36 else ""
            self.tokens += [part.removeprefix("auth=Bearer ") for part in sent.split("\x01") if "auth=" in part]
            return False
        payload = struct.pack(">i", correlation) + answer
        client.sendall(struct.pack(">i", len(payload)) + payload)
        return True

    @staticmethod
    def _received(client: ssl.SSLSocket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = client.recv(size - len(data))
            if not part:
                raise OSError("the client has closed the connection")
            data += part
        return data


@pytest.fixture
def handshake(tmp_path: Path) -> Iterator[Handshake]:
    server = Handshake(tmp_path / "certificates")
    yield server
    server.close()


def test_token_for_msk_is_signed_with_the_credentials_of_the_process(
    handshake: Handshake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker of MSK was tried: the server only records the token of the handshake."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    monkeypatch.setattr("airflow_provider_streamsem.connectors.kafka.cluster.TIMEOUT_S", 3.0)
    local: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{handshake.port}",
        "aws.region": "eu-west-1",
        "ssl.ca.location": str(handshake.certificates.authority),
    }
    with connection_with({**MSK, **local}):
        cluster = KafkaCluster(settings_of("k", None), "read_committed")
    with pytest.raises(StreamsemError) as caught:
        cluster.topic_names()
    assert handshake.mechanisms[0] == "OAUTHBEARER"
    token = handshake.tokens[0]
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    query = parse_qs(url.query)
    assert url.hostname == "kafka.eu-west-1.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert "a-secret-key" not in str(caught.value)


@pytest.mark.parametrize(
    "extensions",
    [
        'a refreshTokenUrl="x"=y', "a.b=c", "auth=x", "a=b\x01c", "a", "a=", "=b", "a b=c", "a=b;\ncom.sun.Module required=x", "ä=b", "a=é",
    ],
)  # fmt: skip
def test_extension_that_could_change_the_login_of_the_java_client_is_refused(extensions: str) -> None:
    with (
        connection_with({**OAUTH, "sasl.oauthbearer.extensions": extensions}),
        pytest.raises(InvalidError, match="extensions of the kafka connection is not valid"),
    ):
        settings_of("k", None)


@given(st.dictionaries(st.sampled_from(["clientId", "clientSecret", "scope"]), st.text(max_size=30), min_size=1))
def test_java_reads_each_login_option_as_it_was_given(options: dict[str, str]) -> None:
    text = _jaas("org.example.Module", options)
    assert tokens_of_java(text) == [
        "org.example.Module",
        "required",
        *(t for n, v in options.items() for t in (n, "=", v)),
        ";",
    ]


def tokens_of_java(text: str) -> list[str]:
    """The tokens of Java's ``StreamTokenizer`` with the settings of Kafka's ``JaasConfig``: text in quotes ends at a line break, and has escapes."""
    tokens, at = [], 0
    while at < len(text):
        if text[at] in " \n\r":
            at += 1
        elif text[at] in "=;":
            tokens.append(text[at])
            at += 1
        elif text[at] == '"':
            value, at = "", at + 1
            while text[at] != '"':
                assert text[at] not in "\n\r", "Java ends the text here"
                if text[at] == "\\":
                    octal = re.match(r"[0-3][0-7]{0,2}|[4-7][0-7]?", text[at + 1 :])
                    value += chr(int(octal[0], 8)) if octal else text[at + 1]
                    at += 1 + (len(octal[0]) if octal else 1)
                else:
                    value, at = value + text[at], at + 1
            tokens, at = [*tokens, value], at + 1
        else:
            word = re.match(r'[^\s=;"]+', text[at:])
            assert word
            tokens, at = [*tokens, word[0]], at + len(word[0])
    return tokens
