"""Tests on real parts (`make integration`)."""

import pytest

pytest.register_assert_rewrite("tests.integration.topics")
