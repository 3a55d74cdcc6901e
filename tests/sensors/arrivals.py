"""Files of orders that arrive for a sensor."""

from __future__ import annotations

import json
from pathlib import Path


def put(location: Path, name: str, first: int, count: int) -> None:
    lines = [json.dumps({"id": first + n, "grams": n * 10, "to": "Bern"}) + "\n" for n in range(count)]
    (location / f".{name}").write_text("".join(lines))
    (location / f".{name}").rename(location / name)  # the rename makes a file appear complete
