"""How often tests of races between publishers repeat. Enumerated steps prove the claim; the rounds vary the timing. `make prove` runs 50."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("STREAMSEM_ROUNDS", "16"))
"""an even number, 14 or more"""
