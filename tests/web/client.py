"""A client of the web API, without a server."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from airflow_provider_streamsem.web.server import app_of


def client_of(*logs: str, shows_records: bool = False) -> TestClient:
    return TestClient(app_of(logs, shows_records=shows_records))


def get(client: TestClient, path: str) -> Any:
    response = client.get(f"/api/pipelines{path}")
    assert response.status_code == 200, response.text
    return response.json()
