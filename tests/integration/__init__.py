"""Tests on real servers (`make integration`)."""

import pytest

pytest.register_assert_rewrite("tests.integration.topics")
