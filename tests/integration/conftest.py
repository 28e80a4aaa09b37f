"""Real S3 servers, started once for all tests that ask for them, and a bucket for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import boto3
import pytest

from localstack.kinds import CREDENTIALS, REGION
from localstack.servers import Servers, running_servers
from tests.integration.buckets import Bucket, use_server


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with running_servers() as running:
        yield running


@pytest.fixture(params=["localstack", "seaweedfs"])
def server_name(request: pytest.FixtureRequest) -> str:
    """Which server a test talks to: each of them, unless a test says otherwise."""
    return str(request.param)


@pytest.fixture
def bucket(servers: Servers, server_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Yield a new bucket, with the environment set so that ckptstore reaches it."""
    endpoint_url = servers.url(server_name)
    use_server(server_name, endpoint_url, monkeypatch)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    name = f"test-{secrets.token_hex(8)}"
    client.create_bucket(Bucket=name)
    yield Bucket(name, endpoint_url, client)
    client.close()
