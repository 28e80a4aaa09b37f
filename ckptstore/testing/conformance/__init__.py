"""The contract as tests. Subclass, provide ``store``, and pytest does the rest.

What a store could satisfy by agreeing with itself is read through ``raw_get``: override it
with a second client, or with another way in, wherever there is one.
"""

from __future__ import annotations

from ckptstore.testing.conformance._base import KEY
from ckptstore.testing.conformance._conduct import ConductContract
from ckptstore.testing.conformance._listing import ListingContract
from ckptstore.testing.conformance._multipart import MultipartContract
from ckptstore.testing.conformance._objects import ObjectContract

__all__ = ["KEY", "StoreContract"]


class StoreContract(ObjectContract, MultipartContract, ListingContract, ConductContract):
    """Every promise of ``ckptstore.store``, as a test.

    ``part_size_bytes`` is what all parts but the last have in these tests; raise it to the
    least that the store takes. ``list_count`` should be more than fits on a page of its listing.
    Some servers list directory by directory (``a/c`` before ``a-b``): for them, say that
    ``lists_in_key_order`` is false. Within one directory all of them keep the order.
    ``lists_uploads`` is false where open uploads are not listed by prefix (MinIO).
    """
