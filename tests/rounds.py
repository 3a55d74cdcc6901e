"""The number of rounds in tests of races between publishers. Other tests enumerate the steps; the rounds vary the timing. `make prove` sets 50."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("STREAMSEM_ROUNDS", "16"))
"""An even number, 14 or more."""
