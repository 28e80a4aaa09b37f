"""Round the world: from one server to another, to a directory, and back, bit for bit."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from ckptstore.cli.main import execute
from localstack.kinds import CREDENTIALS, REGION
from localstack.servers import Servers
from tests.integration.buckets import Bucket, use_server

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
SIZES = {"empty": 0, "one": 1, "part": 16 * MIB, "less": 16 * MIB - 1, "more": 16 * MIB + 1}


def made_bucket(endpoint_url: str) -> Bucket:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    name = f"sync-{secrets.token_hex(8)}"
    client.create_bucket(Bucket=name)
    return Bucket(name, endpoint_url, client)


@pytest.fixture
def buckets(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Bucket]]:
    """Yield a bucket on each server; the environment knows credentials and no endpoint."""
    use_server("localstack", servers.url("localstack"), monkeypatch)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    made = [made_bucket(servers.url(name)) for name in ("localstack", "seaweedfs")]
    yield made
    for bucket in made:
        bucket.raw.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    for name, size in SIZES.items():
        (directory / name).write_bytes(secrets.token_bytes(size))
    return directory


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """Run a command that must succeed, and return its summary."""
    capsys.readouterr()
    code = execute([*map(str, words), "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    summary: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    return summary


def objects_of(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    pages = bucket.raw.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix=prefix)
    keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
    # All but what each store says of itself, and of its own verifications.
    return {
        key.removeprefix(prefix): bucket.raw.get_object(Bucket=bucket.name, Key=key)["Body"].read()
        for key in keys
        if not key.endswith("ckptstore.json") and "/verified/" not in key
    }


def test_round_the_world_bit_for_bit(
    buckets: list[Bucket], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = buckets
    first, second, last = f"s3://{here.name}/a", f"s3://{there.name}/b", f"s3://{here.name}/z"
    local = tmp_path / "local"
    at_here, at_there = here.endpoint_url, there.endpoint_url
    for step in (100, 200):
        run(capsys, "push", source, f"{first}/llama@{step}", "--endpoint-url", at_here)
    # The endpoint that --endpoint-url sets stays in the environment: each side names its own.
    ways: list[tuple[str, str, list[str], list[str]]] = [
        (first, second, ["--src-endpoint-url", at_here], ["--dst-endpoint-url", at_there]),
        (second, str(local), ["--src-endpoint-url", at_there], []),
        (str(local), last, [], ["--dst-endpoint-url", at_here]),
    ]
    for one, other, reading, writing in ways:
        done = run(capsys, "sync", one, other, *reading, *writing)
        assert (done["new"], done["failed"]) == (2, 0)
        assert done["bytes"] == done["bytes_verified"] == 2 * sum(SIZES.values())
        again = run(capsys, "sync", one, other, *reading, *writing)
        assert (again["new"], again["already_there"], again["bytes"]) == (0, 2, 0)
        endpoint = ["--endpoint-url", writing[1]] if writing else []
        assert run(capsys, "verify", other, "--all", *endpoint)["ok"]
    assert objects_of(here, "a/") == objects_of(here, "z/") == objects_of(there, "b/")
    run(capsys, "restore", f"{last}/llama", tmp_path / "back", "--endpoint-url", at_here)
    for name in SIZES:
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
