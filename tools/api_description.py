"""Writes the OpenAPI description of the web view's API to ``ui/openapi.json``, from which ``make page`` generates the client of the page."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_streamsem.web.app import openapi

FILE = Path(__file__).parents[1] / "ui" / "openapi.json"

if __name__ == "__main__":
    FILE.write_text(json.dumps(openapi(), indent=1, sort_keys=True) + "\n")
