"""A real S3 server on loopback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port

ACCESS_KEY, SECRET_KEY = "streamsem-tests", "secret-of-the-s3-server"


def downloaded(path: str, directory: Path) -> str:
    """Copy ``s3://bucket/key`` to a directory, and return the path. Some engines read only from disk."""
    import boto3

    bucket, _, key = path.removeprefix("s3://").partition("/")
    copy = directory / key
    copy.parent.mkdir(parents=True, exist_ok=True)
    boto3.client("s3").download_file(bucket, key, str(copy))
    return str(copy)


class S3Server(Server):
    """
    A versitygw server on a directory. If the environment variable ``S3`` is ``minio``, a MinIO server.

    :param has_accounts: whether the server supports further accounts for bucket policies; this needs versitygw
    """

    def __init__(self, home: Path, *, has_accounts: bool = False) -> None:
        kind = "versitygw" if has_accounts else os.environ.get("S3", "versitygw")
        program = install.go_program(kind)
        home.mkdir(parents=True, exist_ok=True)
        data = home / "data"
        data.mkdir(exist_ok=True)
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        accounts = ["--iam-dir", str(home / "accounts")] if has_accounts else []
        (home / "accounts").mkdir(exist_ok=True)
        self._program = program
        argv = {
            "versitygw": [program, "--port", f"127.0.0.1:{port}", *accounts, "posix", str(data)],
            "minio": [program, "server", "--address", f"127.0.0.1:{port}", str(data)],
        }[kind]
        secrets = {
            "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY, "MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY,
        }  # fmt: skip
        super().__init__(kind, home, argv, port=port, environment=secrets)

    def create_account(self, access_key: str, secret_key: str) -> None:
        """Create an account. It has only the rights that bucket policies grant."""
        admin = {"ADMIN_ACCESS_KEY": ACCESS_KEY, "ADMIN_SECRET_KEY": SECRET_KEY, "ADMIN_ENDPOINT_URL": self.endpoint}
        argv = [self._program, "admin", "create-user", "-a", access_key, "-s", secret_key, "-r", "user"]
        subprocess.run(argv, env={**os.environ, **admin}, check=True, capture_output=True)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for boto3 and for the Spark sessions that this package starts."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def deltalake_options(self) -> dict[str, str]:
        """Return the storage options for deltalake."""
        return {**self.environment(), "AWS_ALLOW_HTTP": "true"}

    def s3a_conf(self) -> dict[str, str]:
        """Return the settings for a Spark server that this package does not start. Its credentials come from the environment."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
