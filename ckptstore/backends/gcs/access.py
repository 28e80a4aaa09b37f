"""Who we are and where the store is: by Google's own variables and files."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Final

import google.auth
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession

from ckptstore.backends.gcs import wire
from ckptstore.errors import SettingsError
from ckptstore.settings import GcsSettings

SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
EMULATOR: Final = "STORAGE_EMULATOR_HOST"


def open_session(access: GcsSettings, connections_max: int) -> tuple[str, AuthorizedSession]:
    """Return the endpoint and a session that signs what goes there; no request is sent.

    An emulator gets no credentials. Raises ``SettingsError`` when none are found otherwise.
    """
    emulator = os.environ.get(EMULATOR) or None
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    credentials = AnonymousCredentials() if emulator else _credentials()
    endpoint = access.endpoint_url or emulator or f"https://storage.{credentials.universe_domain}"
    session = AuthorizedSession(credentials, max_refresh_attempts=1)
    session.headers["User-Agent"] = f"ckptstore/{version('ckptstore')}"
    session.headers["Accept-Encoding"] = "identity"  # Bytes as they were stored.
    wire.prepare(session, connections_max)
    return endpoint.rstrip("/"), session


def _credentials() -> Credentials:
    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise SettingsError(
            f"no Google Cloud credentials: {error} Looked at GOOGLE_APPLICATION_CREDENTIALS, at "
            "what `gcloud auth application-default login` leaves, and at the metadata service; "
            f"{EMULATOR} names an emulator, which needs none"
        ) from error
    return credentials
