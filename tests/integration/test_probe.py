"""A probe of real servers: the sound ones are safe, and of the others it says what they ignore."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckptstore.cli.main import execute
from tests.integration.buckets import Bucket

pytestmark = pytest.mark.integration

CHECKSUMS = {"checksum_of_put", "checksum_of_part", "checksum_of_whole", "size_of_whole"}


def probed(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    code = execute(["probe", f"s3://{bucket.name}/some/prefix", "--quick", "--json"])
    summary: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["exit_code"] == code
    left = bucket.raw.list_objects_v2(Bucket=bucket.name)
    assert left.get("Contents", []) == []
    assert bucket.raw.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []) == []
    return summary


def test_sound_servers_are_safe(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    summary = probed(bucket, capsys)
    assert summary["safe"], summary
    assert summary["exit_code"] == 0


@pytest.mark.parametrize("server_name", ["rclone"])
def test_a_server_that_ignores_conditions_is_not(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = probed(bucket, capsys)
    assert (summary["safe"], summary["exit_code"]) == (False, 6)
    assert set(summary["broken"]) == {"create_only", "create_only_raced"}
    assert {*CHECKSUMS, "create_only_over_parts"} <= set(summary["weak"])
    assert summary["unknown"] == []


@pytest.mark.parametrize("server_name", ["moto"])
def test_what_a_server_ignores_of_checksums_is_said_and_made_up_for(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = probed(bucket, capsys)
    assert (summary["safe"], summary["exit_code"]) == (True, 0)
    assert set(summary["weak"]) == {*CHECKSUMS, "checksum_kept"}
    assert summary["broken"] == summary["unknown"] == []
