"""What a verb is given to work with. Imported by every verb, so it imports next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckptstore.cli.output import Output

if TYPE_CHECKING:
    from ckptstore.clock import Deadline
    from ckptstore.location import StoreLocation
    from ckptstore.settings import Settings
    from ckptstore.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A verb's voice, its settings and its deadline: what the shared options became."""

    output: Output
    settings: Settings
    deadline: Deadline
    go_on: Callable[[], object] = lambda: None  # For what ends when it is told to, and not before.

    def opened(self, location: StoreLocation) -> AbstractAsyncContextManager[ObjectStore]:
        """Open a store for the length of a block."""
        from ckptstore.opening import opened_store

        return opened_store(location, self.settings)

    def with_compression(self, wished: bool) -> Command:
        """Return the command that compresses what it writes, or does not."""
        from ckptstore.settings import Compression

        transfer = replace(self.settings.transfer, compression=Compression() if wished else None)
        return replace(self, settings=replace(self.settings, transfer=transfer))

    def with_s3(self, **chosen: Any) -> Command:  # noqa: ANN401
        """Return the command with these settings of S3; what is ``None`` stays as it was."""
        s3 = replace(
            self.settings.s3, **{name: value for name, value in chosen.items() if value is not None}
        )
        return replace(self, settings=replace(self.settings, s3=s3))
