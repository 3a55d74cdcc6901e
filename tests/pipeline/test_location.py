"""Which locations are logs below the root of a connection. The API server reads only these with the credentials of the connection."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.pipeline.spec.location import is_log_of

ROOTS = ["s3://lake/logs", "memory://logs", "file:///data/logs", "/data/logs"]
PIECES = [
    "orders",
    "other",
    "..",
    ".",
    "",
    "%2e%2e",
    "%2E%2E",
    "%2f",
    "%252e",
    "Orders",
    "a b",
    "~",
    "\\",
    "..\\",
    "\0",
    "\n",
    "？",
    "．．",
    "?x",
    "#x",
    ";",
]


@pytest.mark.parametrize("root", [*ROOTS, ""])
def test_log_with_the_name_of_a_pipeline_is_below_the_root(root: str) -> None:
    assert is_log_of(root, f"{root}/orders-2_b")


@given(st.sampled_from(ROOTS), st.lists(st.sampled_from(PIECES), max_size=4))
def test_only_the_name_of_a_pipeline_directly_below_the_root_passes(root: str, pieces: list[str]) -> None:
    is_name = pieces in (["orders"], ["other"])
    assert is_log_of(root, "/".join([root, *pieces])) == is_name


@given(st.sampled_from(ROOTS), st.text(max_size=8))
def test_no_other_spelling_of_a_location_passes(root: str, text: str) -> None:
    passes = is_log_of(root, root + text)
    assert not passes or (text[0] == "/" and text[1:].replace("_", "").replace("-", "").isascii() and "." not in text)
    assert not is_log_of(root, text + root + "/orders") or not text
    assert not is_log_of(root, f"{root}{text}/other") or not text


@pytest.mark.parametrize(
    "log",
    [
        "s3://lake/logs/../other/orders", "s3://lake/logs/x/../../other", "s3://lake/logs//orders", "s3://lake/./logs/orders", "s3://lake/logs/orders/",
        "s3://lake/Logs/orders", "S3://lake/logs/orders", "s3a://lake/logs/orders", "s3://lake/logs-2/orders", "s3://lake/logs/orders\n", "s3://lake/logs",
        "s3://lake/logs/", "s3://lake/logs/%2e%2e", "s3://lake/logs/..", "s3://user@lake/logs/orders", "/data/logs/orders",
    ],
)  # fmt: skip
def test_other_location_is_not_below_the_root(log: str) -> None:
    assert not is_log_of("s3://lake/logs", log)


def test_local_log_that_is_a_link_is_not_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "orders").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root / "loop")
    assert not is_log_of(str(root), f"{root}/orders")
    assert is_log_of(str(root), f"{root}/payments")
    os.symlink(root, tmp_path / "link")
    assert is_log_of(f"{tmp_path}/link", f"{tmp_path}/link/payments"), "the root itself may be a link"
