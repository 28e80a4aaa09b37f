"""Which account and container, and with what credentials: from the URL and the environment. Pure.

The secrets of an ``AzureAccess`` are kept out of its ``repr``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from ckptstore.errors import SettingsError, UsageError
from ckptstore.location import StoreLocation

_HOST: Final = re.compile(
    r"([a-z0-9]{3,24})((?:\.z\d+)?)\.(?:blob|dfs)\.(core\.[a-z.-]+|storage\.azure\.net)"
)
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """An account's endpoint, a container, and a key, a SAS token, or neither: an identity."""

    endpoint: str
    account: str
    container: str
    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)


def access_of(location: StoreLocation, environment: Mapping[str, str]) -> AzureAccess:
    """Return how to reach ``location``, or raise saying which variable is missing or wrong."""
    named = _named(location)
    told = _told(environment)
    if named is None:
        if not told.account:
            raise SettingsError(
                f"{location} names no account: set AZURE_STORAGE_ACCOUNT or "
                "AZURE_STORAGE_CONNECTION_STRING, or write abfss://CONTAINER@ACCOUNT.dfs...."
            )
        endpoint, account, container = told.endpoint, told.account, location.container
    else:
        endpoint, account, container = named
        if told.account and told.account != account:
            raise SettingsError(
                f"{location} is in the account {account!r}, and the environment has the "
                f"credentials of {told.account!r} (AZURE_STORAGE_...); set those of the right one"
            )
    parts = urlsplit(endpoint)
    if parts.scheme != "https" and parts.hostname not in _LOCAL:
        raise SettingsError(f"{endpoint} is not https; only an emulator on this machine may be")
    return AzureAccess(endpoint.rstrip("/"), account, container, told.key, told.sas)


def _named(location: StoreLocation) -> tuple[str, str, str] | None:
    """Return endpoint, account and container of a URL that names its account."""
    match location.scheme:
        case "abfss":
            container, _, host = location.container.partition("@")
        case "https":
            host, _, container = location.container.partition("/")
        case _:
            return None
    match = _HOST.fullmatch(host)
    if match is None or not container:
        raise UsageError(
            f"{location}: write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX or "
            "https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX"
        )
    account, zone, domain = match.groups()
    return f"https://{account}{zone}.blob.{domain}", account, container


def _told(environment: Mapping[str, str]) -> AzureAccess:
    """Return what the environment says: a connection string goes before all else."""

    def first(*names: str) -> str:
        return next((environment[name] for name in names if environment.get(name)), "")

    if text := first("AZURE_STORAGE_CONNECTION_STRING"):
        return _connection(text)
    account = first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    key = first("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
    sas = "" if key else first("AZURE_STORAGE_SAS_TOKEN").lstrip("?")
    endpoint = f"https://{account}.blob.core.windows.net" if account else ""
    return AzureAccess(endpoint, account, "", key, sas)


def _connection(text: str) -> AzureAccess:
    pairs = (entry.partition("=") for entry in text.split(";") if entry.strip())
    values = {name.strip().lower(): value.strip() for name, _, value in pairs}
    account, key = values.get("accountname", ""), values.get("accountkey", "")
    sas = values.get("sharedaccesssignature", "").lstrip("?")
    protocol = values.get("defaultendpointsprotocol", "https")
    suffix = values.get("endpointsuffix", "core.windows.net")
    endpoint = values.get("blobendpoint") or (account and f"{protocol}://{account}.blob.{suffix}")
    if not endpoint or not (key or sas) or (key and not account):
        raise SettingsError(
            "AZURE_STORAGE_CONNECTION_STRING lacks an account, an endpoint, a key or a shared "
            "access signature; copy it anew from the account's access keys"
        )
    account = account or (urlsplit(endpoint).hostname or "").partition(".")[0]
    return AzureAccess(endpoint, account, "", key, sas)
