"""Sizes and times as people write and read them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from ckptstore.errors import UsageError

_TIME: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)


def parse_seconds(text: str) -> float:
    """Return what ``7d``, ``1h30m``, ``90s`` or ``90`` is in seconds; more than nothing."""
    match = _TIME.fullmatch(text.strip())
    units = zip(match.groups(), (86400, 3600, 60, 1), strict=True) if match else ()
    total_s = sum(float(count or 0) * unit_s for count, unit_s in units)
    if total_s <= 0:
        raise UsageError(f"{text!r} is no length of time; write it like 90s, 30m or 1h30m")
    return total_s


def parse_bytes(text: str) -> int:
    """Return what ``5G``, ``500M``, ``1.5GiB`` or ``1000`` is in bytes: powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    power = " KMGTP".index(match[2].upper() or " ") if match else 0
    size_bytes = int(float(match[1]) * 1024**power) if match else 0
    if size_bytes <= 0:
        raise UsageError(f"{text!r} is no size; write it like 500M or 5G")
    return size_bytes


def human_bytes(size_bytes: float) -> str:
    """Return a size in the unit that suits it: ``812.4 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size_bytes /= 1024
        if size_bytes < 1024:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} PiB"


def human_seconds(seconds: float) -> str:
    """Return a length of time: ``0.4s``, ``42s``, ``6m02s``, ``1h05m``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def human_time(unix_s: float | None) -> str:
    """Return a moment in UTC, or a dash for none."""
    if unix_s is None:
        return "-"
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def counted(count: int, noun: str) -> str:
    """Return ``1 file``, ``2 files``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
