"""
How the two Kafka clients authenticate, by the properties of one connection: librdkafka, and Spark's Java client.

Both clients must need no code or command from the connection, because a user who may edit a connection must not be able to run code in a worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_streamsem.arguments import redacted
from airflow_provider_streamsem.connections import clear_text_warning
from airflow_provider_streamsem.errors import InvalidError

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""SASL mechanisms with which a client authenticates by username and password."""
OAUTHBEARER = "OAUTHBEARER"
"""SASL mechanism with which a client requests a token from an endpoint by a client id and a client secret (OIDC, grant ``client_credentials``)."""
AWS_MSK_IAM = "AWS_MSK_IAM"
"""SASL mechanism of AWS MSK. A client signs a token with the AWS credentials of its process. librdkafka sends this token as one of OAUTHBEARER."""
REGION = "aws.region"
"""Property of a connection that no client knows: the region of the MSK cluster."""
PROPERTIES = (
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    REGION,
)
"""Properties of a connection that determine how clients authenticate."""
_MECHANISMS = (*PASSWORD_MECHANISMS, OAUTHBEARER, AWS_MSK_IAM)
_TOKEN = "sasl.oauthbearer."
_SECURITY = "org.apache.kafka.common.security"
_MSK = "software.amazon.msk.auth.iam"
_EXTENSION = re.compile(r"[A-Za-z]+")
"""The name of a SASL extension, as in RFC 7628. Another name could add an option to the text that configures the login of Java's client."""
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t]+")
_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-[0-9])\.amazonaws\.com")


def mechanism_of(settings: Mapping[str, str]) -> str | None:
    """Return the SASL mechanism of a connection in capital letters; ``None`` if it has none."""
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
    return mechanism.upper() if mechanism else None


def check(conn_id: str, settings: Mapping[str, str]) -> None:
    """Refuse SASL without a supported mechanism or its properties. The error has no secrets."""
    protocol = settings.get("security.protocol", "").upper()
    mechanisms = [settings[name] for name in ("sasl.mechanism", "sasl.mechanisms") if name in settings]
    # Without an explicit mechanism, librdkafka uses GSSAPI, which runs kinit in a shell.
    if (protocol.startswith("SASL") and not mechanisms) or any(each.upper() not in _MECHANISMS for each in mechanisms):
        raise InvalidError(
            "a kafka connection must name a supported sasl.mechanism; no client was started",
            conn_id=conn_id,
            given=mechanisms,
            accepted=list(_MECHANISMS),
        )
    if mechanism_of(settings) == OAUTHBEARER:
        _check_token_endpoint(conn_id, settings)
    if mechanism_of(settings) == AWS_MSK_IAM and (protocol != "SASL_SSL" or _region(settings) is None):
        raise InvalidError(
            "AWS_MSK_IAM needs the protocol SASL_SSL and the region of the cluster; no client was started",
            conn_id=conn_id,
            security_protocol=protocol,
            region=_region(settings),
        ).advising(
            f"set security.protocol to SASL_SSL, and {REGION} if bootstrap.servers names no host of MSK; then run again."
        )


def _check_token_endpoint(conn_id: str, settings: Mapping[str, str]) -> None:
    # Without this method, librdkafka calls a Python function of the application, or creates tokens without a signature.
    required = ("client.id", "client.secret", "token.endpoint.url")
    missing = [f"{_TOKEN}{name}" for name in required if not settings.get(f"{_TOKEN}{name}")]
    is_oidc = settings.get(f"{_TOKEN}method", "").lower() == "oidc"
    is_url = settings.get(f"{_TOKEN}token.endpoint.url", "").lower().startswith(("https://", "http://"))
    if missing or not is_oidc or not is_url:
        raise InvalidError(
            "the kafka connection lacks settings that OAUTHBEARER needs, or has invalid ones; no client was started",
            conn_id=conn_id,
            missing=missing,
            method=settings.get(f"{_TOKEN}method"),
            token_endpoint=token_endpoint(settings),
        ).advising(
            "set sasl.oauthbearer.method to oidc, and set the client id, the client secret and an https:// token endpoint; then run again."
        )

    invalid = [
        name
        for name, value in _extensions(settings).items()
        if not _EXTENSION.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value)
    ]
    if invalid or "auth" in _extensions(settings):
        raise InvalidError(
            "sasl.oauthbearer.extensions of the kafka connection is not valid; no client was started",
            conn_id=conn_id,
            extensions=len(invalid),
        ).advising(
            "write name=value pairs, separated by commas. A name has only letters and is not auth. A value has only printable ASCII characters."
        )


def _extensions(settings: Mapping[str, str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in settings.get(f"{_TOKEN}extensions", "").split(",")]
    return {name.strip(): value.strip() for name, mark, value in pairs if name.strip() or mark}


def token_endpoint(settings: Mapping[str, str]) -> str:
    """Return the URL of the token endpoint without secrets; ``""`` if there is none."""
    return redacted(settings.get(f"{_TOKEN}token.endpoint.url", ""))


def warnings(client: str, conn_id: str | None, settings: Mapping[str, str]) -> list[str]:
    """Return a warning for each kind of credentials that is sent without encryption. ``client``: ``source kafka`` or ``sink kafka``."""
    found = []
    if settings.get("security.protocol", "").upper() == "SASL_PLAINTEXT":
        brokers = [broker.rpartition(":")[0].strip("[]") for broker in settings["bootstrap.servers"].split(",")]
        of_brokers = (
            clear_text_warning(client, conn_id or "", host, "use a listener with security.protocol SASL_SSL")
            for host in brokers
        )
        found += next(filter(None, of_brokers), [])
    if settings.get(f"{_TOKEN}token.endpoint.url", "").lower().startswith("http:"):
        found.append(
            f"the client secret of the kafka connection is sent to {token_endpoint(settings)} without encryption: use an https:// token endpoint"
        )
    return found


def client_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Needs the library that signs tokens for MSK, if the connection uses them."""
    if mechanism_of(settings) != AWS_MSK_IAM:
        return dict(settings)
    region = _region(settings)
    assert region is not None  # `check` has refused the connection
    others = {name: value for name, value in settings.items() if name not in PROPERTIES}
    return {**others, "sasl.mechanisms": OAUTHBEARER, "oauth_cb": _msk_token(region)}


def _msk_token(region: str) -> Callable[[str], tuple[str, float]]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise InvalidError("aws-msk-iam-sasl-signer-python is not installed").advising(
            "run `pip install 'airflow-provider-streamsem[kafka,msk]'`, then run again."
        ) from error

    def token(_: str) -> tuple[str, float]:
        """Return a token and its expiry, in seconds since the epoch. librdkafka calls the function again before the token expires."""
        signed, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return signed, expiry_ms / 1000

    return token


def _region(settings: Mapping[str, str]) -> str | None:
    found = _MSK_HOST.search(settings.get("bootstrap.servers", ""))
    return settings.get(REGION) or (found[1] if found else None)


def java_login(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which Java's client authenticates; empty without a SASL mechanism."""
    mechanism = mechanism_of(settings)
    if mechanism is None:
        return {}
    if mechanism == AWS_MSK_IAM:
        login = {
            "sasl.jaas.config": _jaas(f"{_MSK}.IAMLoginModule", {}),
            "sasl.client.callback.handler.class": f"{_MSK}.IAMClientCallbackHandler",
        }
    elif mechanism == OAUTHBEARER:
        login = _java_token_login(settings)
    else:
        module = f"{_SECURITY}.{'plain.Plain' if mechanism == 'PLAIN' else 'scram.Scram'}LoginModule"
        names = ("username", "password")
        login = {"sasl.jaas.config": _jaas(module, {name: settings.get(f"sasl.{name}", "") for name in names})}
    return {"sasl.mechanism": mechanism, **login}


def _java_token_login(settings: Mapping[str, str]) -> dict[str, str]:
    options = {"clientId": settings[f"{_TOKEN}client.id"], "clientSecret": settings[f"{_TOKEN}client.secret"]}
    if scope := settings.get(f"{_TOKEN}scope"):
        options["scope"] = scope
    options |= {f"extension_{name}": value for name, value in _extensions(settings).items()}
    return {
        "sasl.jaas.config": _jaas(f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule", options),
        "sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        f"{_TOKEN}token.endpoint.url": settings[f"{_TOKEN}token.endpoint.url"],
    }


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """Java's tokenizer unescapes a value in quotes. The names are this module's, or of :func:`_extensions` that :func:`check` accepted."""
    texts = [f'{name}="{_in_quotes(value)}"' for name, value in options.items()]
    return f"{' '.join([module, 'required', *texts])};"


def _in_quotes(value: str) -> str:
    # Java's StreamTokenizer ends a quoted text at a line break, and knows octal escapes of up to three digits.
    return "".join(f"\\{ord(c):03o}" if ord(c) < 0x20 else f"\\{c}" if c in '"\\' else c for c in value)
