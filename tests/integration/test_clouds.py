"""The main job on stores that are not S3, and whole checkpoints on their way round all of them."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from localstack.servers import Servers, variables
from tests.integration.buckets import Bucket
from tests.integration.test_torch_s3 import loaded, lost, saved
from tests.torch.ranks import run_ranks, watch_ranks
from tests.torch.worlds import checkpoints_of

pytestmark = [pytest.mark.integration, pytest.mark.distributed]
VICTIM = 2


def command(*words: object) -> dict[str, object]:
    """Run a verb in a process of its own, and return the summary."""
    done = subprocess.run(
        [sys.executable, "-m", "ckptstore.cli.main", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return summary


@pytest.fixture
def opened(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return what makes a new container on a server and says its URL."""

    def make(server: str) -> str:
        url, name = servers.url(server), f"test-{secrets.token_hex(8)}"
        for variable, value in variables(server, url).items():
            monkeypatch.setenv(variable, value)
        if server == "fakegcs":
            with storage.Client(credentials=AnonymousCredentials(), project="test") as client:
                client.create_bucket(name)
            return f"gs://{name}"
        text = variables(server, url)["AZURE_STORAGE_CONNECTION_STRING"]
        with ContainerClient.from_connection_string(text, name, api_version="2023-11-03") as raw:
            raw.create_container()
        return f"az://{name}"

    return make


@pytest.mark.parametrize("server", ["fakegcs", "azurite"])
def test_four_ranks_save_a_lost_one_commits_nothing_and_what_it_left_is_collected(
    servers: Servers, opened: Callable[[str], str], server: str
) -> None:
    store = f"{opened(server)}/ckpts"
    url, environment = f"{store}/llama", variables(server, servers.url(server))
    run_ranks(4, saved, url, environment)
    for rank, outcome in enumerate(watch_ranks(4, lost, url, environment, VICTIM)):
        assert outcome.error is None, outcome.trace
        assert rank == VICTIM or f"rank {VICTIM}" in outcome.value
    assert run_ranks(2, loaded, url, environment) == [(True, 1)] * 2
    command("resolve", url)
    command("gc", store, "--keep-last", 1, "--yes")
    assert [info.state for info in checkpoints_of(url) if info.state == "committed"] == [
        "committed"
    ]
    command("verify", url)
    assert run_ranks(2, loaded, url, environment) == [(True, 1)] * 2


@pytest.mark.parametrize("server_name", ["localstack"])
def test_a_checkpoint_goes_round_all_stores_and_comes_back_the_same(
    bucket: Bucket, opened: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    content = bytes(range(256)) * 100_000
    (tmp_path / "model" / "weights").write_bytes(content)
    stops = [
        f"s3://{bucket.name}/there",
        opened("fakegcs"),
        f"{opened('azurite')}/deep/down",
        str(tmp_path / "local"),
        f"s3://{bucket.name}/back",
    ]
    pushed = command("push", tmp_path / "model", f"{stops[0]}/llama@7")
    for source, target in pairwise(stops):
        first = command("sync", source, target)
        assert (first["new"], first["failed"]) == (1, 0)
        again = command("sync", source, target)
        assert (again["new"], again["bytes"]) == (0, 0)
    back = command("restore", f"{stops[-1]}/llama", tmp_path / "restored")
    assert back["uid"] == pushed["uid"]
    assert (tmp_path / "restored" / "weights").read_bytes() == content
