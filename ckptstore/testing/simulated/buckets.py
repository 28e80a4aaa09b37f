"""How a store limits the rate of requests: so many a second for each prefix."""

from __future__ import annotations

import asyncio


class TokenBuckets:
    """A bucket for each prefix of ``depth`` segments, filled at ``per_s`` up to ``burst``."""

    def __init__(self, *, per_s: float, burst: float, depth: int = 2) -> None:
        self._per_s = per_s
        self._burst = burst
        self._depth = depth
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, key: str) -> float:
        """Take a token for ``key`` and return 0, or return in how many seconds there is one."""
        prefix = "/".join(key.split("/")[: self._depth])
        now_s = asyncio.get_running_loop().time()
        tokens, filled_s = self._buckets.get(prefix, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - filled_s) * self._per_s)
        admitted = tokens >= 1.0
        self._buckets[prefix] = (tokens - admitted, now_s)
        return 0.0 if admitted else (1.0 - tokens) / self._per_s
