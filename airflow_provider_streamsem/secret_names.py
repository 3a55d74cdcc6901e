"""
Finds secrets in specs and settings, by the words of names: of options, headers, settings, and parameters of URLs and connection strings.

One rule decides whether a name means a secret (:func:`means_secret`). It has lists of words, and no list of options, because any library may add options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_streamsem.errors import InvalidError

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_WORDS = frozenset({
    "auth", "authorization", "bearer", "cookie", "credential", "credentials", "hmac", "jwt", "pass", "passphrase",
    "passwd", "password", "passwords", "pat", "pwd", "sas", "secret", "secrets", "sig", "signature", "token",
    "tokens",
})  # fmt: skip
_IN_ONE_WORD = re.compile(
    r"(password|passwd|passphrase|secret|token|credential|signature)s?$|^(auth|jwt|oauth|sas)(key|token|code)$"
    r"|(access|account|api|app|client|encryption|functions|master|private|secret|shared|signing|storage|subscription)key$"
)
"""Matches a word that joins several words in lower case, such as ``accesskey``."""
_PUBLIC_KEYS = frozenset({
    "aggregate", "business", "cache", "cluster", "clustering", "column", "composite", "dedup", "distribution",
    "foreign", "group", "hash", "idempotency", "join", "map", "merge", "message", "natural", "object", "order",
    "ordering", "partition", "partitioning", "primary", "public", "record", "routing", "row", "sequence", "shard",
    "sort", "surrogate", "unique",
})  # fmt: skip
"""Words before ``key`` that make it the name of a key of data."""
_PUBLIC_ENDS = frozenset({
    "algorithm", "alias", "at", "binding", "class", "column", "columns", "delegation", "enable", "enabled",
    "endpoint", "expiration", "expires", "expiry", "file", "format", "handler", "header", "id", "ids", "impl",
    "interval", "length", "location", "max", "mechanism", "method", "min", "mode", "ms", "name", "names", "path",
    "policy", "prefix", "provider", "realm", "refresh", "region", "renewal", "required", "s", "scope", "seconds",
    "size", "store", "timeout", "ttl", "type", "uri", "url", "version",
})  # fmt: skip
"""Words after a secret that make the name that of a setting that describes the secret, but is none."""
_QUERY_NAMES = ("code", "key")
"""Names that mean a secret as the parameter of a URL, and something else in a spec."""
_CONNECTION_STRING = re.compile(r"connection[-_.]?string$", re.IGNORECASE)
_KUBERNETES_REFERENCE = re.compile(r"^spark\.kubernetes\..*\.(secretKeyRef|secrets)\.", re.IGNORECASE)
_JAVA_OPTION = re.compile(r"-D([^\s=]+)=\S")
_ASSIGNMENT = re.compile(r"(?:^|[;&?\s,])([A-Za-z][\w .-]{0,60}?)\s*=\s*[^\s;&]")


def means_secret(name: str) -> bool:
    """
    Return whether a name means that its value is a secret.

    The words of a name are separated by other characters than letters and digits, or by capital letters. A name means a secret if one of its words does, such
    as ``token``, or if it has the word ``key`` after another word. It does not if a word after it describes something else, such as ``token-url`` or
    ``access.key.id``, or if the key is a key of data, such as ``partition_key``.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _PUBLIC_ENDS:
        return False
    if _CONNECTION_STRING.search(name):
        return True
    is_secret = [_is_secret(word, before) for before, word in zip(["", *words], words, strict=False)]
    return any(
        found and after not in _PUBLIC_ENDS and not found_after
        for found, after, found_after in zip(is_secret, [*words[1:], ""], [*is_secret[1:], False], strict=True)
    )


def _is_secret(word: str, before: str) -> bool:
    if word == "key":
        return before != "" and before not in _PUBLIC_KEYS
    return word in _SECRET_WORDS or _IN_ONE_WORD.search(word) is not None


def secret_settings(conf: Mapping[str, str]) -> list[str]:
    """
    Return the names of Spark settings that contain a secret, sorted.

    A setting contains a secret if its name means a secret, or if its value has a Java option, a URL or a connection string with one. A setting that refers to
    a Kubernetes secret is not included.
    """
    return sorted(name for name, value in conf.items() if _is_secret_setting(name, value) or _holds_secret(value))


def _is_secret_setting(name: str, value: str) -> bool:
    is_flag = value.lower() in ("", "true", "false")
    return means_secret(name) and not is_flag and not _KUBERNETES_REFERENCE.search(name)


def without_secrets(where: str, value: Any) -> None:
    """
    Reject JSON that contains a secret. Secrets are detected by names, in URLs and in connection strings only.

    The log stores the spec, the triggerer receives it, and command lines show it. So a spec must not contain secrets. The error names the paths of the secrets,
    without their values.
    """
    paths = sorted(_secrets(value, ()))
    if paths:
        raise InvalidError(f"{where} must not contain secrets", given=paths).advising(
            "put the secrets into an Airflow connection, and name it by conn_id=. No rows were committed."
        )


def _secrets(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, str) and item.lower() not in ("", "true", "false") and means_secret(name):
                yield ".".join((*path, name))
            else:
                yield from _secrets(item, (*path, name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _secrets(item, path)
    elif isinstance(value, str) and _holds_secret(value):
        yield ".".join(path)


def _holds_secret(text: str) -> bool:
    """Return whether a text is a URL, a path with a query, a connection string or Java options with a secret."""
    if any(means_secret(name) for name in _JAVA_OPTION.findall(text)):
        return True
    is_url, has_query = "://" in text, "?" in text
    if not is_url and not has_query and ";" not in text and not text.startswith("jdbc:"):
        return False
    try:
        parts = urlsplit(text.removeprefix("jdbc:"))
        has_password = is_url and parts.password is not None
    except ValueError:
        return True
    parameters = {name for name, value in parse_qsl(parts.query) if value}
    if has_password or any(means_secret(name) or name.lower() in _QUERY_NAMES for name in parameters):
        return True
    return any(means_secret(name) for name in _ASSIGNMENT.findall(text))
