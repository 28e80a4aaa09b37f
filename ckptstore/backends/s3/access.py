"""Where S3 requests go, as whom, and what of that may not be meant."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ckptstore.types import Access

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

AWS_DOMAINS: Final = (".amazonaws.com", ".amazonaws.com.cn")
KEY_ID_SHOWN_MIN: Final = 16  # Shorter ones are no identifiers of AWS, and may be secrets.


async def described(session: AioSession, client: Any) -> Access:  # noqa: ANN401
    """Return endpoint, region, credentials and trust, in words and without a secret."""
    endpoint_url = str(client.meta.endpoint_url)
    credentials = client._request_signer._credentials
    frozen = await credentials.get_frozen_credentials()
    expires: datetime | None = getattr(credentials, "_expiry_time", None)
    facts = (
        ("endpoint", _named(endpoint_url)),
        ("region", str(client.meta.region_name)),
        ("addressing", str(client.meta.config.s3["addressing_style"])),
        ("credentials", f"{masked(frozen.access_key)} from {credentials.method}"),
        ("credentials expire", _expiry(expires, has_token=bool(frozen.token))),
        ("certificates", _trust(session, endpoint_url)),
    )
    fleeting = bool(frozen.token) and expires is None
    return Access(facts, tuple(_doubts(session, endpoint_url, fleeting=fleeting)))


def masked(key_id: str) -> str:
    """Return enough of a key id to know it by."""
    return f"{key_id[:4]}...{key_id[-4:]}" if len(key_id) >= KEY_ID_SHOWN_MIN else "a key"


def _named(endpoint_url: str) -> str:
    is_aws = (urlsplit(endpoint_url).hostname or "").endswith(AWS_DOMAINS)
    return f"{endpoint_url} (AWS itself: no other endpoint is set)" if is_aws else endpoint_url


def _expiry(expires: datetime | None, *, has_token: bool) -> str:
    if expires is not None:
        return f"{expires.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}, and are renewed before"
    return "at a time that is not known" if has_token else "never"


def _trust(session: AioSession, endpoint_url: str) -> str:
    if not endpoint_url.startswith("https://"):
        return "none: no TLS"
    return str(session.get_config_variable("ca_bundle") or "those that botocore brings")


def _doubts(session: AioSession, endpoint_url: str, *, fleeting: bool) -> Iterator[str]:
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        yield "configured endpoints are ignored (AWS_IGNORE_CONFIGURED_ENDPOINT_URLS)"
    if not endpoint_url.startswith("https://") and not _is_here(endpoint_url):
        yield "plain HTTP: anybody on the way can read and change what is saved"
    if fleeting:
        yield (
            "these credentials are temporary and nothing renews them: a job that outlives them "
            "cannot save; use a profile or a role"
        )


def _is_here(endpoint_url: str) -> bool:
    host = urlsplit(endpoint_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
