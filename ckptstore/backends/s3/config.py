"""The SDK's client, set up so that it does nothing behind our back."""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import exceptions as sdk
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.handlers import add_expect_header
from botocore.loaders import Loader, create_loader

from ckptstore.errors import SettingsError
from ckptstore.settings import RequestSettings, S3Settings

POOL_HEADROOM: Final = (
    8  # Listings hold no place in the limit, and waiting for the pool has no end.
)
NO_CREDENTIALS: Final = (
    "no AWS credentials: looked at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, at the profile "
    "{profile!r} in {credentials} and {config} (AWS_PROFILE chooses another), at web identity "
    "and SSO set-ups there, and at the metadata services of containers and instances"
)


async def open_client(
    settings: RequestSettings, access: S3Settings, closing: AsyncExitStack
) -> tuple[AioSession, Any]:
    """Return a session and its S3 client, which ``closing`` will close.

    Profile, region, endpoint, CA bundle and addressing come from where AWS's own tools look,
    unless ``access`` says otherwise.
    """
    try:
        session = AioSession(profile=access.profile)
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        if await session.get_credentials() is None:
            raise SettingsError(_no_credentials(session))
        endpoint_url = access.endpoint_url or _endpoint_url(session)
        style = access.addressing_style or _addressing_style(session)
        # botocore knows AWS_DEFAULT_REGION alone; AWS's other tools prefer this one.
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
        client = await closing.enter_async_context(
            session.create_client(
                "s3",
                region_name=region or ("us-east-1" if endpoint_url else None),
                endpoint_url=endpoint_url,
                config=_config(settings, style or ("path" if endpoint_url else "auto")),
            )
        )
    except (sdk.BotoCoreError, ValueError) as error:
        raise SettingsError(f"the AWS configuration cannot be used: {error}") from error
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return session, client


@cache
def _loader(data_path: str | None) -> Loader:
    """Return the SDK's descriptions of AWS, read once a process: that takes most of the time."""
    return create_loader(data_path)


def _endpoint_url(session: AioSession) -> str | None:
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    provider = ConfiguredEndpointProvider(
        full_config=session.full_config,
        scoped_config=session.get_scoped_config(),
        client_name="s3",
    )
    url: str | None = provider.provide()
    return url


def _addressing_style(session: AioSession) -> str | None:
    configured = session.get_scoped_config().get("s3") or {}
    return configured.get("addressing_style") if isinstance(configured, dict) else None


def _config(settings: RequestSettings, addressing_style: str) -> AioConfig:
    return AioConfig(
        connect_timeout=settings.connect_s_max,
        read_timeout=2 * settings.complete_s_max,  # The watch on each request is stricter.
        max_pool_connections=settings.in_flight_max + POOL_HEADROOM,
        retries={"mode": "standard", "total_max_attempts": 1},
        # One of our own, because the SDK would put its own together anew for every request.
        user_agent=f"ckptstore/{version('ckptstore')} aiobotocore/{version('aiobotocore')}",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False, "addressing_style": addressing_style},
        connector_args={"socket_factory": _socket_factory(settings)},
    )


def _socket_factory(settings: RequestSettings) -> Any:  # noqa: ANN401
    """Return a maker of sockets that the kernel closes when their peer is gone."""
    patience_ms = int(2 * settings.stall_s_max * 1000)

    def make(address: Any) -> socket.socket:  # noqa: ANN401
        family, kind, protocol = address[:3]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        return made

    return make


def _no_credentials(session: AioSession) -> str:
    return NO_CREDENTIALS.format(
        profile=session.profile or "default",
        credentials=os.path.expanduser(session.get_config_variable("credentials_file")),
        config=os.path.expanduser(session.get_config_variable("config_file")),
    )
