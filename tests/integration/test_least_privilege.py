"""The policies of docs/reference/security.md on a server that enforces them. Each role has the rights that it needs, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Pipeline,
    State,
    open_log,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.errors import StoreRefusedError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.s3 import S3Access, use_s3_access
from tests.integration.parts.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.integration.parts.server import running

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "security.md"
POLICIES = {
    name: json.loads(text) for name, text in re.findall(r"```json (\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
}
POLICIES["stateful"]["Statement"] += POLICIES["runner"]["Statement"]  # The page has only the rights that are added.
BUCKETS = {"LOG": "p-log", "DATASET": "p-out", "SOURCE": "p-in"}
PIPELINE = Pipeline(
    name="p",
    log="s3://p-log",
    source=FilesSource(path="s3://p-in", format="json", schema="id long"),
    sinks={"out": FilesSink("s3://p-out")},
)


class Roles:
    """The accounts of a server, one for each policy."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.root = self.client(ACCESS_KEY, SECRET_KEY)
        for bucket in BUCKETS.values():
            self.root.create_bucket(Bucket=bucket)
        for name in POLICIES:
            server.create_account(name, f"secret-of-{name}")
        for bucket in BUCKETS.values():
            statements = [statement for name in POLICIES for statement in self._statements(name, bucket)]
            policy = {"Version": "2012-10-17", "Statement": statements}
            self.root.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))

    @staticmethod
    def _statements(role: str, bucket: str) -> Iterator[dict[str, Any]]:
        """Yield the role's statements in the form of a bucket policy: limited to this bucket, with the role as principal."""
        for statement in POLICIES[role]["Statement"]:
            found = [
                re.sub(":::([A-Z]+)", lambda match: f":::{BUCKETS[match[1]]}", arn) for arn in statement["Resource"]
            ]
            own = [arn for arn in found if re.fullmatch(rf"arn:aws:s3:::{bucket}(/.*)?", arn)]
            if own:
                yield {**statement, "Principal": {"AWS": [role]}, "Resource": own}

    def client(self, access_key: str, secret_key: str) -> Any:
        return boto3.session.Session(access_key, secret_key, region_name="us-east-1").client(
            "s3", endpoint_url=self._server.endpoint
        )

    def access(self, role: str) -> S3Access:
        return S3Access(
            endpoint_url=self._server.endpoint, region_name="us-east-1", access_key_id=role, secret_access_key=f"secret-of-{role}"
        )  # fmt: skip

    def refuses(self, role: str, call: Callable[[Any], object]) -> bool:
        """Return whether the server denies the call to a role."""
        try:
            call(self.client(role, f"secret-of-{role}"))
        except ClientError as error:
            return bool(error.response["Error"]["Code"] == "AccessDenied")
        return False


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[Roles]:
    server = S3Server(tmp_path / "s3", has_accounts=True)
    with running(server):
        yield Roles(server)


def test_each_role_works_with_the_documented_rights_and_has_no_others(roles: Roles, spark: SparkSession) -> None:
    def arrive(name: str, ids: range) -> None:
        roles.root.put_object(
            Bucket="p-in", Key=name, Body="".join(f'{{"id": {n}}}\n' for n in ids).encode() + b"{bad\n"
        )

    arrive("a.json", range(5))
    with use_s3_access(roles.access("runner")):
        assert doctor.examine(commit_log_at("s3://p-log")).passed
        run_batch(PIPELINE, run_key="a")
        arrive("b.json", range(5, 9))
        run_batch(PIPELINE, run_key="b")
        reprocess(PIPELINE, 0)
        assert verify(PIPELINE).violations == []
        create_leftovers(roles)
        with pytest.raises(StoreRefusedError):
            vacuum(PIPELINE)
    assert roles.refuses("runner", put("p-in", "x.json"))
    assert all(roles.refuses("runner", delete(bucket, "x")) for bucket in BUCKETS.values())

    with use_s3_access(roles.access("reader")):
        assert verify("s3://p-log").violations == []
        assert len(open_log("s3://p-log").files()) == 2
        assert len([*open_log("s3://p-log").quarantined()]) == 2
    assert {row.id for row in read_as_reader(roles, spark)} == {*range(9)}
    assert all(roles.refuses("reader", put(bucket, "x")) for bucket in BUCKETS.values())
    assert all(roles.refuses("reader", delete(bucket, "x")) for bucket in BUCKETS.values())
    assert roles.refuses("reader", lambda s3: s3.get_object(Bucket="p-in", Key="a.json"))

    with use_s3_access(roles.access("vacuum")):
        assert {attempt for _, _, attempt in vacuum(PIPELINE).attempts} == {"0" * 32}
        assert verify(PIPELINE).violations == []
    assert all(roles.refuses("vacuum", put(bucket, "data/0/x")) for bucket in BUCKETS.values())
    for key in (keys.PIPELINE, keys.outcome(0), keys.plan(0)):
        assert roles.refuses("vacuum", delete("p-log", key))
    assert roles.refuses("vacuum", delete("p-out", keys.DATASET_MARKER))


def test_pipeline_with_state_needs_the_right_to_delete_state_files_only(roles: Roles, spark: SparkSession) -> None:
    """Hadoop writes state files under another name and renames them, which copies and deletes the object on S3."""
    counting = PIPELINE.replace(
        transform=lambda records: records.groupBy("id").count(), state=State(output_mode="update", partitions=1)
    )
    roles.root.put_object(Bucket="p-in", Key="a.json", Body=b'{"id": 1}\n')
    inner: Any = spark
    close_all = inner._jvm.org.apache.hadoop.fs.FileSystem.closeAll  # Hadoop's cache ignores server and credentials.
    close_all()
    with use_s3_access(roles.access("runner")), pytest.raises(StreamsemError):
        run_batch(counting, run_key="a")
    close_all()
    with use_s3_access(roles.access("stateful")):
        run_batch(counting, run_key="a")
        roles.root.put_object(Bucket="p-in", Key="b.json", Body=b'{"id": 1}\n{"id": 2}\n')
        run_batch(counting, run_key="b")
        assert verify(counting).violations == []
    close_all()
    assert roles.refuses("stateful", delete("p-log", keys.outcome(0)))
    assert roles.refuses("stateful", delete("p-out", "x"))


def put(bucket: str, key: str) -> Callable[[Any], object]:
    return lambda s3: s3.put_object(Bucket=bucket, Key=key, Body=b"")


def delete(bucket: str, key: str) -> Callable[[Any], object]:
    return lambda s3: s3.delete_object(Bucket=bucket, Key=key)


def create_leftovers(roles: Roles) -> None:
    """Create the files of a discarded attempt at a closed version."""
    lost = "0" * 32
    roles.root.put_object(Bucket="p-out", Key=f"data/0/{lost}/part-0.parquet", Body=b"x")
    roles.root.put_object(Bucket="p-log", Key=f"attempts/0/{lost}.json", Body=b"x")


def read_as_reader(roles: Roles, spark: SparkSession) -> list[Any]:
    """Read the rows with Spark and only the reader's rights."""
    session = spark.newSession()
    access = roles.access("reader")
    for bucket in ("p-log", "p-out"):
        settings = {"endpoint": access.endpoint_url, "access.key": access.access_key_id, "secret.key": access.secret_access_key,
                    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"}  # fmt: skip
        for name, value in settings.items():
            session.conf.set(f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}", str(value))
            session.conf.set(f"fs.s3a.bucket.{bucket}.{name}", str(value))
    with use_s3_access(access):
        return read_committed(session, "s3://p-log").collect()
