"""A name means a secret by its words, whatever library the option is of. Names of data and of settings about secrets do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.secret_names import means_secret, secret_settings, without_secrets

SECRETS = [
    "s3.secret-access-key", "s3.session-token", "client.secret-access-key", "client.session-token",
    "glue.secret-access-key", "dynamodb.session-token", "adls.connection-string", "adls.account-key",
    "adls.sas-token", "adls.sas-token.account", "adls.client-secret", "adls.token",
    "adls.sas-token.account.dfs.core.windows.net", "gcs.oauth2.token", "hf.token", "credential", "token",
    "rest.signing-key", "header.Authorization", "header.X-Api-Key", "header.Cookie", "ssl.key-password",
    "ssl.keystore.password", "sasl.password", "sasl.oauthbearer.client.secret", "basic.auth.user.info",
    "aws.secretKey", "awsSecretAccessKey", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AccountKey",
    "SharedAccessKey", "SharedAccessSignature", "sharedaccesskey", "x-functions-key", "X-Amz-Signature",
    "X-Amz-Security-Token", "X-Goog-Signature", "sig", "hmac", "jwt", "apikey", "api_key", "client_secret",
    "access_token", "refreshToken", "id_token", "bearer", "private_key", "privateKey", "subscription-key",
    "Ocp-Apim-Subscription-Key", "fs.s3a.secret.key", "fs.s3a.encryption.key",
    "fs.azure.account.key.acct.dfs.core.windows.net", "fs.azure.sas.container.acct.blob.core.windows.net",
    "spark.authenticate.secret", "trustStorePassword", "sfPassword", "pem_private_key", "kafka.sasl.jaas.password",
    "storageAccountKey", "proxy.pass", "DB_PWD", "passphrase", "sas", "master-key", "webhook_secret", "authtoken",
]  # fmt: skip
HARMLESS = [
    "key", "keys", "key_header", "partition_key", "primary-key", "primaryKey", "sort.key", "message_key",
    "record-key", "routing_key", "ordering_key", "idempotency-key", "key.column", "merge_keys", "s3.access-key-id",
    "client.access-key-id", "aws_access_key_id", "kms_key_id", "token-url", "token_endpoint", "oauth2-server-uri",
    "rest.authorization-url", "gcs.oauth2.token-expires-at", "fs.s3a.aws.credentials.provider",
    "fs.s3a.delegation.token.binding", "fs.azure.account.auth.type.acct.dfs.core.windows.net", "spark.ssl.keyStore",
    "spark.io.encryption.keySizeBits", "spark.sql.mapKeyDedupPolicy", "rest.sigv4-enabled", "rest.signing-name",
    "rest.signing-region", "warehouse", "uri", "author", "tokenizer", "passenger", "compass", "assignment",
    "signal", "design", "monkey", "keyboard", "hotkey_enabled", "header.X-Iceberg-Access-Delegation", "s3.endpoint",
    "multiLine", "basePath", "secretariat", "bypass", "path",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_option_that_holds_a_secret_is_refused_wherever_it_is_written(name: str) -> None:
    assert means_secret(name)
    for value in (
        {name: "x"},
        {"a": [{name: "x"}]},
        f"https://h/p?v=1&{name}=x",
        f"/p?{name}=x",
        f"jdbc:sqlserver://h;user=u;{name}=x",
    ):
        with pytest.raises(InvalidError, match="must not contain secrets") as refused:
            without_secrets("a spec", value)
        assert "'x'" not in str(refused.value)
    assert secret_settings({f"spark.{name}": "x", "spark.y": f"-D{name}=x", "spark.z": f"jdbc:a://h/?{name}=x"}) == [
        f"spark.{name}", "spark.y", "spark.z",
    ]  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_option_that_holds_no_secret_is_accepted(name: str) -> None:
    assert not means_secret(name)
    without_secrets("a spec", {name: "x", "b": [{name: "x"}], "empty": {"password": "", "token": "false"}})


@given(
    before=st.lists(st.sampled_from(["acme", "v2", "lake", "http"]), max_size=2),
    secret=st.sampled_from(
        [
            ["password"],
            ["token"],
            ["secret"],
            ["signing", "key"],
            ["sas"],
            ["credential"],
            ["signature"],
            ["api", "key"],
            ["jwt"],
        ]
    ),
    after=st.lists(st.sampled_from(["acct", "core", "blob"]), max_size=2),
    form=st.sampled_from(["-", "_", ".", "camel", "UPPER_"]),
)
def test_name_with_the_word_of_a_secret_means_a_secret_in_any_notation(
    before: list[str], secret: list[str], after: list[str], form: str
) -> None:
    words = [*before, *secret, *after]
    camel = words[0] + "".join(word.capitalize() for word in words[1:])
    name = {"camel": camel, "UPPER_": "_".join(words).upper()}.get(form, form.join(words))
    assert means_secret(name), name


@given(text=st.text(alphabet=st.sampled_from("?;&=:/ @-Dab1.%[]token"), max_size=60))
def test_any_text_is_inspected_without_an_error(text: str) -> None:
    secret_settings({"spark.x": text})
