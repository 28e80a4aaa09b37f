"""Azure: where a URL and the environment lead, and what its answers mean to us."""

from __future__ import annotations

import base64

import pytest

from ckptstore.backends.azure import wire
from ckptstore.backends.azure.access import access_of
from ckptstore.backends.azure.errors import Call, Refusal, refused
from ckptstore.errors import (
    CkptStoreError,
    CredentialsExpiredError,
    DamagedError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    SettingsError,
    ThrottledError,
    TransientStoreError,
    TruncatedObjectError,
    UsageError,
    WriteOutcomeUnknownError,
)
from ckptstore.integrity import crc64nvme
from ckptstore.location import parse_run, parse_store
from ckptstore.types import ByteRange, Key, UploadId

CALL = Call("multipart_complete", Key("k"), "box", UploadId("u"), ByteRange(0, 4))


@pytest.mark.parametrize(
    ("status", "code", "why", "kind"),
    [
        (503, "ServerBusy", "", ThrottledError),
        (429, "", "", ThrottledError),
        (500, "OperationTimedOut", "", ThrottledError),
        (500, "InternalError", "", TransientStoreError),
        (502, "", "", TransientStoreError),
        (504, "", "", TransientStoreError),
        (408, "", "", TransientStoreError),
        (401, "", "", CredentialsExpiredError),
        (403, "AuthenticationFailed", "not in the specified time frame", CredentialsExpiredError),
        (403, "AuthenticationFailed", "Request date header too old", SettingsError),
        (403, "AuthenticationFailed", "MAC signature differs", PermissionDeniedError),
        (403, "AuthorizationFailure", "", PermissionDeniedError),
        (404, "ContainerNotFound", "", SettingsError),
        (404, "BlobNotFound", "", ObjectNotFoundError),
        (412, "ConditionNotMet", "", ObjectExistsError),
        (409, "BlobAlreadyExists", "", ObjectExistsError),
        (416, "InvalidRange", "", TruncatedObjectError),
        (400, "InvalidBlockList", "", WriteOutcomeUnknownError),
        (400, "Md5Mismatch", "", DamagedError),
        (400, "Crc64Mismatch", "", DamagedError),
    ],
)
def test_an_answer_means_what_the_table_says(
    status: int, code: str, why: str, kind: type[CkptStoreError]
) -> None:
    assert type(refused(Refusal(status, code, why), CALL)) is kind


@pytest.mark.parametrize(
    "url",
    [
        "abfss://box@acct.dfs.core.windows.net/some/prefix",
        "https://acct.blob.core.windows.net/box/some/prefix",
        "az://box/some/prefix",
    ],
)
def test_every_way_to_write_it_leads_to_the_same_container(url: str) -> None:
    location = parse_store(url)
    access = access_of(location, {"AZURE_STORAGE_ACCOUNT": "acct", "AZURE_STORAGE_KEY": "c2VjcmV0"})
    assert str(location) == url
    assert location.prefix == "some/prefix"
    assert (access.endpoint, access.container) == ("https://acct.blob.core.windows.net", "box")
    assert "c2VjcmV0" not in repr(access)


def test_a_signature_in_a_url_is_refused_and_not_shown() -> None:
    url = "https://acct.blob.core.windows.net/box/run?sv=1&sig=c2VjcmV0"
    for parse in (parse_store, parse_run):
        with pytest.raises(UsageError) as caught:
            parse(url)
        assert "c2VjcmV0" not in str(caught.value)
    assert "c2VjcmV0" not in str(refused(Refusal(500, "", url), CALL))


def test_an_account_that_is_missing_another_or_not_https_is_a_matter_of_settings() -> None:
    abfss = parse_store("abfss://box@acct.dfs.core.windows.net")
    plain = "AccountName=a;AccountKey=c2VjcmV0;BlobEndpoint=http://far.away/a"
    for location, environment in (
        (parse_store("az://box"), {}),
        (abfss, {"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "c2VjcmV0"}),
        (parse_store("az://box"), {"AZURE_STORAGE_CONNECTION_STRING": plain}),
    ):
        with pytest.raises(SettingsError) as caught:
            access_of(location, environment)
        assert "c2VjcmV0" not in str(caught.value)


def test_block_ids_are_of_one_length_and_tell_whose_they_are() -> None:
    upload_id = wire.new_upload_id(1e9)
    ids = [wire.new_block_id(upload_id, what) for what in (0, 49_999, wire.BEGUN, wire.ENDED)]
    assert len({len(block_id) for block_id in ids}) == 1
    assert max(len(base64.b64decode(block_id)) for block_id in ids) <= 64
    assert wire.uploads_of(ids[:3]) == ({upload_id}, set())
    assert wire.uploads_of(ids) == ({upload_id}, {upload_id})
    assert wire.begun_unix_s(upload_id) == 1e9


def test_a_checksum_is_written_least_significant_byte_first() -> None:
    assert crc64nvme(b"123456789") == 0xAE8B14860A799888
    assert wire.checksum_header(0xAE8B14860A799888) == "iJh5CoYUi64="
