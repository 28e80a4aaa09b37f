"""What a ``checkpoint_id`` given to ``dcp.save`` or ``dcp.load`` may mean."""

from __future__ import annotations

import os
import re
from typing import Final

from ckptstore.errors import UsageError
from ckptstore.location import RunLocation, parse_run
from ckptstore.manifest.layout import check_step

_STEP: Final = re.compile(r"(?:step[-_])?(\d+)")


def checked_step(step: int) -> int:
    """Return ``step``, or raise ``UsageError`` because it cannot be one."""
    if type(step) is not int:
        raise UsageError(f"step must be an integer: {step!r}")
    try:
        return check_step(step)
    except ValueError as error:
        raise UsageError(str(error)) from error


def step_of(checkpoint_id: str | os.PathLike[str], location: RunLocation) -> int:
    """Return the step that ``checkpoint_id`` names: ``1000``, ``step-1000`` or ``RUN_URL@1000``.

    Anything else is refused rather than ignored, for whoever wrote it expects something of it.
    """
    text = os.fspath(checkpoint_id)
    run_url, at, last = text.rpartition("@")
    match = _STEP.fullmatch(last)
    if match is None or (at and str(parse_run(run_url)) != str(location)):
        raise UsageError(
            f"checkpoint_id {text!r} does not name a step of {location}; write '1000', "
            f"'step-1000' or '{location}@1000', or leave it out"
        )
    return checked_step(int(match.group(1)))


def is_run_url(checkpoint_id: str | os.PathLike[str]) -> bool:
    try:
        parse_run(checkpoint_id)
    except UsageError:
        return False
    return True
