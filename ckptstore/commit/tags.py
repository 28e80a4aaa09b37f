"""Tags: names that people give to checkpoints, which retention then keeps."""

from __future__ import annotations

from typing import Protocol

from ckptstore.clock import Clock
from ckptstore.commit.retire import is_retired, removed
from ckptstore.commit.standing import put_standing
from ckptstore.concurrency import map_concurrently
from ckptstore.errors import ConflictError, ObjectNotFoundError
from ckptstore.manifest.codec import decode_tag, encode_record
from ckptstore.manifest.layout import tag_key, tags_prefix
from ckptstore.manifest.model import Tag
from ckptstore.store import SupportsDelete, SupportsGet, SupportsList, SupportsPut
from ckptstore.types import Key


class TagsStore(SupportsGet, SupportsList, Protocol):
    """All that looking at tags needs."""


class TagStore(SupportsGet, SupportsPut, SupportsDelete, Protocol):
    """All that tagging needs."""


async def put_tag(store: TagStore, run: str, name: str, uid: str, *, clock: Clock) -> None:
    """Give a committed checkpoint a name; from here on retention keeps it.

    A name is given once: to move it, delete the tag first. Raises ``ConflictError`` if another
    checkpoint has it, and ``CheckpointNotFoundError`` if retention has let go of this one.
    """
    if await is_retired(store, run, uid):
        raise removed(run, uid)
    key = tag_key(run, name)
    tag = Tag(run=run, name=name, uid=uid, tagged_unix_s=clock.unix_s())
    standing = decode_tag(await put_standing(store, key, encode_record(tag)), key)
    if standing.uid != uid:
        raise ConflictError(
            f"run {run}: tag {name} is on checkpoint {standing.uid} already; delete the tag "
            "first to move it"
        )
    if await is_retired(store, run, uid):  # Since we asked; whoever did it may not see the tag.
        if standing == tag:
            await delete_tag(store, run, name)
        raise removed(run, uid)


async def delete_tag(store: SupportsDelete, run: str, name: str) -> None:
    """Take the name away; taking away none is a success."""
    await store.delete(tag_key(run, name))


async def list_tags(store: TagsStore, run: str) -> dict[str, str]:
    """Return which checkpoint has which name: uid by tag."""
    keys = [info.key async for info in store.list_objects(tags_prefix(run))]

    async def read(key: Key) -> Tag | None:
        try:
            return decode_tag(await store.get(key), key)
        except ObjectNotFoundError:
            return None  # It was taken away meanwhile.

    tags = await map_concurrently(read, keys)
    return {tag.name: tag.uid for tag in tags if tag is not None}
