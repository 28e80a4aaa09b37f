"""What the tests on real servers share: a bucket, and an environment that leads to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from localstack.servers import variables


@dataclass(frozen=True)
class Bucket:
    """An empty bucket on a server, and a client of somebody else's to look into it with."""

    name: str
    endpoint_url: str
    raw: Any  # A boto3 client.


def use_server(name: str, endpoint_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point AWS's variables, and nothing of this machine's own set-up, at a server."""
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, "/dev/null")
    for variable, value in variables(name, endpoint_url).items():
        monkeypatch.setenv(variable, value)
