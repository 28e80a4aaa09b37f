"""Hand the number of faults that a test swept to the end of the report, also across processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.swept import SWEPT


@pytest.fixture(autouse=True)
def report_faults_swept(record_property: Callable[[str, object], None]) -> Iterator[None]:
    SWEPT.clear()
    yield
    for name, count in SWEPT.items():
        record_property(f"faults swept: {name}", count)
