"""How the S3 store interprets S3's responses. The tests use a client with scripted responses."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.stores.contract import UnknownResultError, open_store
from airflow_provider_streamsem.stores.s3 import S3Access, S3Store, use_s3_access
from airflow_provider_streamsem.testing.clock import ManualClock


class Client:
    """Returns the next scripted response for each call, or raises it if it is an exception."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.meta = SimpleNamespace(endpoint_url="http://s3.lake:9000")

    def __getattr__(self, method: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.sent.append((method, arguments))
            response = self.responses.pop(0)
            if isinstance(response, Exception):
                raise response
            return response

        return call


class Body:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self) -> bytes:
        return self.data


def refused(status: int, code: str = "Error", operation: str = "PutObject") -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)


UNCLEAR = [
    refused(409, "ConditionalRequestConflict"),
    refused(500, "InternalError"),
    refused(503, "SlowDown"),
    refused(400, "RequestTimeout"),
    refused(429, "TooManyRequests"),
    ReadTimeoutError(endpoint_url="x"),
    ConnectTimeoutError(endpoint_url="x"),
    EndpointConnectionError(endpoint_url="x"),
    ConnectionClosedError(endpoint_url="x"),
    OSError("broken pipe"),
    refused(400, "400", "HeadObject"),
    SSLError(endpoint_url="x", error="[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"),
]


@pytest.mark.parametrize("error", UNCLEAR, ids=lambda e: type(e).__name__ + str(getattr(e, "response", "")))
def test_unclear_response_is_an_unknown_result_and_the_store_does_not_retry(error: Exception) -> None:
    client = Client(error)
    with pytest.raises(UnknownResultError):
        S3Store("b", "p", client).create("k", b"x")
    assert len(client.sent) == 1


@pytest.mark.parametrize(
    "error", [refused(403, "AccessDenied"), refused(404, "NoSuchBucket"), refused(501), NoCredentialsError()]
)
def test_clear_refusal_reports_that_nothing_was_written(error: Exception) -> None:
    with pytest.raises(StoreRefusedError):
        S3Store("b", "p", Client(error)).create("k", b"x")


@pytest.mark.parametrize(
    ("error", "cause", "advice"),
    [
        (refused(403, "InvalidAccessKeyId"), "S3 does not know the access key", "correct the access key"),
        (refused(403, "SignatureDoesNotMatch"), "the secret access key does not fit", "correct the secret access key"),
        (refused(400, "InvalidToken"), "does not accept the session token", "renew or remove"),
        (refused(403, "RequestTimeTooSkewed"), "clock of this machine", "set the clock"),
        (refused(403, "AccessDenied"), "S3 denies the access key", "grant the access key"),
        (refused(403, "403", "HeadObject"), "S3 denies the access key", "grant the access key"),
        (refused(301, "PermanentRedirect"), "in another region", "AWS_DEFAULT_REGION"),
        (refused(301, "301", "HeadObject"), "in another region", "AWS_DEFAULT_REGION"),
        (refused(400, "AuthorizationHeaderMalformed"), "in another region", "AWS_DEFAULT_REGION"),
        (refused(404, "404", "ListObjectsV2"), "without an error code of S3", "correct the endpoint"),
        (refused(400, "400"), "without an error code of S3", "correct the endpoint"),
        (SSLError(endpoint_url="x", error="[SSL: WRONG_VERSION_NUMBER] wrong version number"), "does not speak TLS", "http://"),
        (SSLError(endpoint_url="x", error="[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "is not trusted", "AWS_CA_BUNDLE"),
    ],
)  # fmt: skip
def test_mistake_that_s3_reports_is_named_and_not_retried(error: Exception, cause: str, advice: str) -> None:
    store = S3Store("b", "p", Client(error))
    store._client.meta.endpoint_url = "http://me:hunter2@s3.lake:9000"
    with pytest.raises(StoreRefusedError) as raised:
        next(store.list(""))
    assert cause in raised.value.summary
    assert advice in raised.value.do
    assert raised.value.fields["endpoint"] == "http://s3.lake:9000"


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint_url": "s3.lake:9000"},
        {"endpoint_url": "s3://s3.lake:9000"},
        {"endpoint_url": ""},
        {"region_name": "eu west"},
        {"profile_name": "absent"},
    ],
)
def test_setting_that_boto3_refuses_is_named_and_no_request_is_sent(changes: dict[str, str]) -> None:
    with use_s3_access(S3Access(**changes)):
        store = S3Store("b", "p")
    (given,) = changes.values()
    with pytest.raises(InvalidError, match=f"no request was sent.*{given}"):
        store.read("k")


@pytest.mark.parametrize("name", ["My Bucket", "bucket!", "b" * 256])
def test_name_that_no_bucket_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="the name of an S3 bucket"):
        open_store(f"s3://{name}/x")


def test_error_for_missing_credentials_names_the_variables_and_the_connection() -> None:
    with pytest.raises(StoreRefusedError, match=r"NoCredentialsError.*Do: set AWS_ACCESS_KEY_ID.*log_conn_id"):
        S3Store("b", "p", Client(NoCredentialsError())).create("k", b"x")


def test_error_names_an_endpoint_that_does_not_respond() -> None:
    client = Client(*[EndpointConnectionError(endpoint_url="http://s3.lake:9000")] * 3)
    with pytest.raises(UnavailableError, match=r"endpoint='http://s3.lake:9000', problem='EndpointConnectionError'"):
        log(client).create("k", b"mine")


def test_create_sends_if_none_match() -> None:
    client = Client({})
    assert S3Store("b", "p", client).create("k", b"x")
    (_, sent) = client.sent[0]
    assert (sent["IfNoneMatch"], sent["Key"], sent["Body"]) == ("*", "p/k", b"x")


def test_412_means_that_the_object_exists() -> None:
    assert S3Store("b", "", Client(refused(412, "PreconditionFailed"))).create("k", b"x") is False


def log(client: Client, tries: int = 3) -> CommitLog:
    return CommitLog(S3Store("b", "p", client), ManualClock(), RetryPolicy(tries=tries))


def test_retried_create_whose_first_request_was_applied_is_recognized_by_its_bytes() -> None:
    client = Client(refused(500), refused(412), {"Body": Body(b"mine")})
    created = log(client).create("k", b"mine")
    assert (created.mine, created.first) == (True, False)
    assert client.sent[0] == client.sent[1]


def test_retried_create_that_another_writer_won_returns_the_winners_bytes() -> None:
    client = Client(refused(409), refused(412), {"Body": Body(b"theirs")})
    created = log(client).create("k", b"mine")
    assert (created.mine, created.data) == (False, b"theirs")


def test_412_followed_by_a_read_without_result_sends_the_same_bytes_again() -> None:
    client = Client(refused(412), refused(404, "NoSuchKey"), {})
    created = log(client).create("k", b"mine")
    assert (created.mine, created.first) == (True, True)


def test_create_whose_retries_are_exhausted_reports_an_unknown_result() -> None:
    client = Client(*[refused(503)] * 3)
    with pytest.raises(UnavailableError, match="unknown"):
        log(client).create("k", b"mine")
    assert [method for method, _ in client.sent] == ["put_object"] * 3


def test_W7_refusal_of_a_retry_after_an_unknown_result_reports_an_unknown_result() -> None:
    with pytest.raises(UnavailableError, match="unknown"):
        log(Client(ReadTimeoutError(endpoint_url="x"), refused(403, "AccessDenied"))).create("k", b"mine")


def test_expired_credentials_are_a_retryable_error() -> None:
    with pytest.raises(UnknownResultError) as caught:
        S3Store("b", "p", Client(refused(400, "ExpiredToken"))).create("k", b"x")
    assert caught.value.retryable


def test_create_of_a_key_that_exists_but_cannot_be_read_exhausts_its_retries() -> None:
    client = Client(*[refused(412), refused(404, "NoSuchKey")] * 9)
    with pytest.raises(UnavailableError):
        log(client).create("k", b"mine")


def test_age_is_the_time_since_the_last_change_by_the_clock_of_s3() -> None:
    item = {"ETag": '"x"', "LastModified": datetime(2026, 1, 1, tzinfo=timezone.utc)}
    date = {"ResponseMetadata": {"HTTPHeaders": {"date": "Thu, 01 Jan 2026 00:01:30 GMT"}}}
    store = S3Store("b", "p", Client({"Contents": [{**item, "Key": "p/k", "Size": 1}], **date}, {**item, **date, "ContentLength": 1}, {**item, "ContentLength": 1}))  # fmt: skip
    assert [stat.age_ns for stat in store.list("")] == [90_000_000_000]
    ages = [stat.age_ns for stat in (store.stat("k"), store.stat("k")) if stat is not None]
    assert ages == [90_000_000_000, None]


def test_folder_objects_are_not_listed_as_files(streamsem_log: str) -> None:
    from airflow_provider_streamsem import FilesSource

    location = open_store(streamsem_log)
    assert isinstance(location, S3Store)
    for key in ("in/", "in/day/"):
        location._client.put_object(Bucket=location.bucket, Key=location.prefix + key, Body=b"")
    open_store(f"{streamsem_log}/in").create("day/a.json", b"{}")
    source = FilesSource(path=f"{streamsem_log}/in", format="json", schema="id long")
    assert [(f.path, f.identity[:5]) for f in source.listing(0)] == [("day/a.json", "etag:")]


def test_waits_between_retries_double_up_to_a_maximum() -> None:
    waits: list[float] = []

    class RecordingClock(ManualClock):
        def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    opened = CommitLog(
        S3Store("b", "p", Client(*[refused(503)] * 5, {})),
        RecordingClock(),
        RetryPolicy(tries=9, first_wait_s=1, longest_wait_s=4),
    )
    assert opened.create("k", b"x").mine
    assert waits == [1, 2, 4, 4, 4]


def test_client_has_no_retries_and_finite_timeouts(streamsem_log: str) -> None:
    config = open_store(streamsem_log)._client.meta.config  # type: ignore[attr-defined]
    assert config.retries["total_max_attempts"] == 1
    assert 0 < config.connect_timeout <= 10
    assert 0 < config.read_timeout <= 60


def test_opening_a_store_sends_no_request() -> None:
    assert isinstance(open_store("s3://no-such-bucket/x"), S3Store)


def test_prefix_with_an_empty_segment_is_refused() -> None:
    with pytest.raises(InvalidError):
        open_store("s3://bucket/a//b")


def test_error_names_a_missing_bucket(streamsem_log: str) -> None:
    with pytest.raises(StoreRefusedError, match=r"bucket does not exist.*s3://absent-bucket/x.*Do: create the bucket"):
        open_store("s3://absent-bucket/x").create("k", b"")
