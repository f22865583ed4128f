"""Credentials of object stores in the forms that tools write, and combinations of settings that are refused."""

from __future__ import annotations

import json

import pytest

from cachedaemon.config import Fetch, Secret, Settings, account_of, bucket_url, credentials_of, load
from cachedaemon.config.credentials import parse
from cachedaemon.errors import ConfigError
from cachedaemon.origins.objects.opening import opened

KEY = "aHVudGVyMg=="
SIGNATURE = "sv=2022-11-02&sr=c&sig=hunter2%2Fx%3D"
PAIR = {"access_key_id": "A", "secret_access_key": "hunter2"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"access_key_id": "A", "secret_access_key": "hunter2", "session_token": "t"}),
        json.dumps({"AccessKeyId": "A", "SecretAccessKey": "hunter2", "SessionToken": "t", "Version": 1}),
        json.dumps({"Credentials": {"AccessKeyId": "A", "SecretAccessKey": "hunter2", "SessionToken": "t"}}),
        json.dumps({"AccessKeyId": "A", "SecretAccessKey": "hunter2", "Token": "t"}),
        "# mine\n[default]\naws_access_key_id=A\naws_secret_access_key = hunter2\naws_session_token=t\nregion=x\n",
    ],
)
def test_forms_of_s3(text: str) -> None:
    found = parse("s3", text, None)
    assert found.options == {"access_key_id": "A", "secret_access_key": "hunter2", "session_token": "t"}
    assert found.expires is None
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("2030-01-31T12:00:00Z", 1896091200),
        ("2030-01-31T12:00:00+00:00", 1896091200),
        ("2030-01-31T14:00:00.5+02:00", 1896091200.5),
        ("2030-01-31T12:00:00", 1896091200),
        ("", None),
    ],
)
def test_times(written: str, seconds: float | None) -> None:
    assert parse("s3", json.dumps(PAIR | {"Expiration": written}), None).expires == seconds


@pytest.mark.parametrize(
    ("text", "path", "options"),
    [
        ('{"type": "service_account", "private_key": "hunter2"}', None, {"service_account_key": ...}),
        ('{"type": "authorized_user", "refresh_token": "hunter2"}', "/adc", {"application_credentials": "/adc"}),
        ('{"access_token": "hunter2", "expiration": "2030-01-31T12:00:00Z"}', None, {"bearer_token": "hunter2"}),
    ],
)
def test_forms_of_gs(text: str, path: str | None, options: dict[str, object]) -> None:
    assert parse("gs", text, path).options == {name: text if v is ... else v for name, v in options.items()}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (KEY, {"account_key": KEY}),
        (SIGNATURE, {"sas_key": SIGNATURE}),
        ("?" + SIGNATURE, {"sas_key": SIGNATURE}),
        (f"AccountName=a;AccountKey={KEY}", {"account_name": "a", "account_key": KEY}),
        (
            f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn;",
            {"account_name": "a", "account_key": KEY, "endpoint": "https://a.blob.core.chinacloudapi.cn"},
        ),
        (
            f"BlobEndpoint=https://a.blob.core.windows.net/;SharedAccessSignature={SIGNATURE}",
            {"account_name": "a", "sas_key": SIGNATURE, "endpoint": "https://a.blob.core.windows.net"},
        ),
    ],
)
def test_forms_of_az(text: str, options: dict[str, str]) -> None:
    assert parse("az", text, None).options == options


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ("s3", "hunter2"),
        ("s3", '{"access_key_id": "hunter2"'),
        ("s3", '["hunter2"]'),
        ("s3", json.dumps({"access_key_id": "hunter2"})),
        ("s3", json.dumps(PAIR | {"expiration": "hunter2"})),
        ("s3", json.dumps(PAIR | {"secret_access_key": 5})),
        ("s3", "[hunter2]\naws_access_key_id=A\naws_secret_access_key=hunter2"),
        ("s3", "aws_access_key_id=hunter2"),
        ("gs", "hunter2"),
        ("gs", '{"type": "authorized_user", "refresh_token": "hunter2"}'),
        ("gs", '{"type": "external_account"}'),
        ("gs", '{"access_token": ""}'),
        ("az", "hunter2!"),
        ("az", "AccountName=hunter2"),
        ("az", "AccountName=a;AccountKey=hunter2!"),
        ("az", f"BlobEndpoint=https://h/;SharedAccessSignature={SIGNATURE}"),
        # what the client library does not bear in a request's head
        ("s3", json.dumps(PAIR | {"access_key_id": "A\nhunter2: B"})),
        ("s3", json.dumps(PAIR | {"session_token": "\0hunter2"})),
        ("s3", json.dumps(PAIR | {"session_token": "\ud800hunter2"})),
        ("s3", "[default]\naws_access_key_id=A\n  B\naws_secret_access_key=hunter2"),
        ("gs", json.dumps({"access_token": "hunter2\n"})),
        ("az", f"AccountName=a\nb;AccountKey={KEY}"),
        # what nests without end
        ("s3", '{"hunter2":' * 10_000),
        ("gs", "[" * 60_000),
    ],
)
def test_what_is_no_credential_is_refused_without_being_shown(scheme: str, text: str) -> None:
    with pytest.raises(ValueError, match="the credentials cannot be read: allowed is") as error:
        parse(scheme, text, None)
    assert "hunter2" not in str(error.value)
    with pytest.raises(ConfigError, match=r"sources\.s\.credentials: the credentials cannot be read") as refused:
        configured(f"{scheme}://b/", credentials=text)
    assert "hunter2" not in str(refused.value)


def test_other_text_makes_other_credentials() -> None:
    """Those of a file that the library reads by itself too."""
    texts = (json.dumps({"type": "authorized_user", "refresh_token": name}) for name in "ab")
    first, second = (parse("gs", text, "/adc") for text in texts)
    assert first.options == second.options
    assert first != second


def test_lines_are_no_fault_of_a_document() -> None:
    secret = Secret(json.dumps(PAIR, indent=1), {})
    assert credentials_of("s3", secret).options == PAIR
    with pytest.raises(ConfigError, match="control characters"):
        secret.value()


@pytest.mark.parametrize(
    ("endpoint", "account"),
    [
        ("https://mine.blob.core.windows.net", "mine"),
        ("https://mine.dfs.core.windows.net/", "mine"),
        ("http://127.0.0.1:10000/devstoreaccount1", "devstoreaccount1"),
        ("https://storage.example.org/", None),
        ("", None),
    ],
)
def test_accounts_of_endpoints(endpoint: str, account: str | None) -> None:
    assert account_of(endpoint) == account


def configured(url: str, environ: dict[str, str] | None = None, **settings: object) -> Settings:
    variables = {f"CACHEDAEMON_SOURCES__S__{name.upper()}": str(value) for name, value in settings.items()}
    return load(None, variables | (environ or {}), {"sources.s.url": url}, root=True)


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        ("s3://b/", {"anonymous": True, "credentials": json.dumps(PAIR)}, "s.anonymous: true is refused beside"),
        ("s3://b/", {"headers": '{ a = "b" }'}, "s.headers: has no effect on a source of s3"),
        ("gs://b/", {"region": "eu"}, "s.region: has no effect on a source of gs"),
        ("http://h/", {"endpoint": "http://h/"}, "s.endpoint: has no effect on a source of http"),
        ("file:///x/", {"anonymous": True}, "s.anonymous: has no effect on a source of file"),
        ("https://h/", {"credentials": "hunter2"}, "s.credentials: has no effect on a source of https"),
    ],
)
def test_settings_without_effect_are_refused(url: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        configured(url, **settings)
    assert says in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("settings", [{}, {"credentials": KEY}, {"endpoint": "https://own.example.org"}])
def test_azure_without_an_account_is_refused_with_where_one_goes(settings: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"^sources\.s\.endpoint: no account is named: .* \$AZURE_STORAGE_ACCOUNT_NAME$"
    ):
        configured("az://c/", **settings)


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({"AZURE_STORAGE_ACCOUNT_NAME": "a"}, {"credentials": KEY}),
        ({"AZURE_STORAGE_USE_EMULATOR": "true"}, {}),
        ({}, {"endpoint": "https://a.blob.core.windows.net"}),
        ({}, {"credentials": f"AccountName=a;AccountKey={KEY}"}),
    ],
)
def test_what_names_azures_account_is_enough_for_the_library_too(
    environ: dict[str, str], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    source = configured("az://c/", environ, **settings).sources["s"]
    given = credentials_of("az", source.credentials) if source.credentials else None
    opened(bucket_url(source.url), source, Fetch(), given)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b", "k"),
        ("s3://b/", "k"),
        ("S3://b/a b%20/", "a b%20/k"),
        ("gs://b/train-", "train-k"),
        ("az://c/x/{key}.tar", "x/k.tar"),
    ],
)
def test_names_of_objects(url: str, name: str) -> None:
    assert bucket_url(url).name("k") == name
