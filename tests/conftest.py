"""Let failed assertions inside the shipped contract explain themselves too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("ckptstore.testing.conformance")
