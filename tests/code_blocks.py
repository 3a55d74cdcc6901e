"""The code blocks of a documentation page."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path


def blocks(page: Path, language: str) -> list[str]:
    matches = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in matches]
