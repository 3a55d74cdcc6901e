"""Requests to the admin API of Pulsar: the partitions of a topic and their ledgers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

from airflow_provider_streamsem.connectors.pulsar.access import Access
from airflow_provider_streamsem.connectors.pulsar.entries import Ledgers
from airflow_provider_streamsem.errors import SourceChangedError, StoreRefusedError, UnavailableError

_TIMEOUT_S = 30
_REDIRECTS = 5
DO_REFUSED = "check the token of the connection, and the rights of its role on the namespace; then run again."


@dataclass(frozen=True, slots=True)
class PulsarAdmin:
    """``topic`` is a full name, such as ``persistent://public/default/orders``."""

    access: Access
    topic: str

    def partitions(self) -> list[str]:
        """The full names of the partitions of the topic, or the topic itself if it has no partitions."""
        found = self._get(f"{_path(self.topic)}/partitions", "partitions")
        if found is None:
            raise SourceChangedError("the topic does not exist; nothing was written", topic=self.topic).advising(
                "create the topic, or correct `topic`; then run again."
            )
        return [f"{self.topic}-partition-{n}" for n in range(found["partitions"])] or [self.topic]

    def ledgers(self, partition: str) -> Ledgers | None:
        """``None`` if the partition does not exist, or has no message."""
        found = self._get(f"{_path(partition)}/internalStats", "lastConfirmedEntry", "ledgers")
        if found is None:
            return None
        newest, _, entry = found["lastConfirmedEntry"].partition(":")
        entries = {ledger["ledgerId"]: ledger["entries"] for ledger in found["ledgers"]}
        if int(newest) in entries:  # the number of entries of an open ledger is reported as 0
            entries[int(newest)] = max(entries[int(newest)], int(entry) + 1)
        filled = {ledger: count for ledger, count in sorted(entries.items()) if count}
        return Ledgers(filled) if filled else None

    def _get(self, path: str, *fields: str) -> Any:
        """``None`` if there is no such object. The document must have ``fields``."""
        import requests

        where = {"admin_url": self.access.admin_url, "topic": self.topic}
        try:
            response = self._response(f"{self.access.admin_url}/admin/v2/{path}")
            if response.status_code == 404:
                return None
            if response.status_code in (401, 403):
                raise StoreRefusedError(
                    "Pulsar refused a request; nothing was written", **where, status=response.status_code
                ).advising(DO_REFUSED)
            response.raise_for_status()
            document = response.json()
            if any(field not in document for field in fields):
                raise ValueError
            return document
        except (requests.RequestException, ValueError, TypeError) as error:
            summary = "Pulsar's admin API did not respond; nothing was written"
            raise UnavailableError(summary, **where, error=type(error).__name__).advising(
                "check `admin_url`, and that this host reaches it; then run again."
            ) from None

    def _response(self, url: str) -> Any:
        """Follow redirects to the broker that owns the topic, with the token, but not from an encrypted URL to one that is not."""
        import requests

        # requests sends headers not to the target of a redirect to another host, and prefers a .netrc file to a header. An authentication object has neither.
        authentication = _Bearer(self.access.token) if self.access.token else None
        with _certificates(self.access.ca) as verify:
            for _ in range(_REDIRECTS):
                response = requests.get(
                    url, auth=authentication, timeout=_TIMEOUT_S, verify=verify, allow_redirects=False
                )
                if not response.is_redirect:
                    return response
                target = urljoin(url, response.headers["Location"])
                if url.startswith("https:") and not target.startswith("https:"):
                    raise ValueError
                url = target
        raise ValueError


class _Bearer:
    """Implements the interface of authentication of requests."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


@contextmanager
def _certificates(ca: str) -> Iterator[bool | str]:
    """The argument ``verify`` of requests, which reads certificates only from a file."""
    if not ca:
        yield True
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(ca)
        file.flush()
        yield file.name


def _path(topic: str) -> str:
    domain, _, name = topic.partition("://")
    return f"{domain}/{quote(name)}"
