"""``ckptstore version``: which release, and of what it is made."""

from __future__ import annotations

import platform
from typing import Final

from ckptstore.cli.command import Command

LIBRARIES: Final = (
    "aiobotocore",
    "awscrt",
    "azure-storage-blob",
    "boto3",
    "google-auth",
    "msgspec",
    "torch",
    "zstandard",
)


async def version(command: Command) -> int:
    """Show this release and its libraries."""
    from importlib import metadata

    found = {name: release for name in LIBRARIES if (release := _release(name))}
    command.output.summary(
        "\n".join([version_text(), *(f"{name} {release}" for name, release in found.items())]),
        exit_code=0,
        version=metadata.version("ckptstore"),
        python=platform.python_version(),
        checksum="CRC64NVME by awscrt",
        libraries=found,
    )
    return 0


def version_text() -> str:
    from importlib import metadata

    return f"ckptstore {metadata.version('ckptstore')} (Python {platform.python_version()})"


def _release(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
