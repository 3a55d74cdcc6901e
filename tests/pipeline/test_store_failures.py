"""Full disks, read-only logs, missing permissions, and a log on S3: one clear error, no lost rows, and the next run succeeds."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from airflow_provider_streamsem.errors import StoreRefusedError
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.s3 import S3Store
from tests.pipeline_fixture import PipelineFixture


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("at", range(6))
def test_run_continues_without_loss_after_the_log_was_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, at: int
) -> None:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(3)
    real, links = os.link, []

    def fail(source: str, target: str) -> None:
        links.append(target)
        if len(links) > at:
            raise OSError(code, os.strerror(code))
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("airflow_provider_streamsem.stores.local.os.link", fail)
        with pytest.raises(StoreRefusedError, match="Do:"):
            fixture.run("a", drain=True)
    assert fixture.run("a", drain=True).ranges == {"files": (2, 5)}
    fixture.check()


def test_run_continues_without_loss_after_the_disk_was_full_during_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(2)
    real = os.fsync

    def fail(descriptor: int) -> None:
        if "/out/data/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "full")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr("airflow_provider_streamsem.stores.dataset.os.fsync", fail)
        with pytest.raises(StoreRefusedError, match="nothing became visible"):
            fixture.run("a")
    assert fixture.opened().head == -1
    fixture.run("a")
    fixture.check()


def test_pipeline_runs_with_its_log_on_s3(streamsem_log: str, tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path, store=open_store(streamsem_log))
    fixture.arrive(5, bad_lines=1)
    result = fixture.run("a", drain=True)
    assert fixture.run("a", drain=True) == result
    assert result.counts == {"filtered": 0, "parsed": 15, "quarantined": 5, "read": 20, "written.out": 15}
    fixture.check()


def test_run_continues_without_loss_after_write_access_was_denied(streamsem_log: str, tmp_path: Path) -> None:
    store = open_store(streamsem_log)
    fixture = PipelineFixture(tmp_path, store=store)
    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(2)

    class DeniedClient:
        def __init__(self, client: Any) -> None:
            self.client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

        def put_object(self, **arguments: Any) -> None:
            raise ClientError(
                {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "PutObject"
            )

    assert isinstance(store, S3Store)
    with pytest.raises(StoreRefusedError, match="AccessDenied"):
        fixture.run("a", store=S3Store(store.bucket, store.prefix.rstrip("/"), DeniedClient(store._client)))
    fixture.run("a")
    fixture.check()
