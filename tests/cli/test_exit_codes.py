"""The exit code says what to do next."""

from __future__ import annotations

import errno
import itertools

import pytest

from ckptstore import errors
from ckptstore.cli import exit_codes
from ckptstore.cli.exit_codes import NAMES, code_of, worst


def subclasses(kind: type[errors.CkptStoreError]) -> list[type[errors.CkptStoreError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in subclasses(sub))]


@pytest.mark.parametrize("kind", subclasses(errors.CkptStoreError))
def test_every_error_of_ours_has_a_code_that_is_ranked_and_named(
    kind: type[errors.CkptStoreError],
) -> None:
    code = code_of(kind("as if"))
    assert code == kind.exit_code
    assert NAMES[code]
    assert worst([code, exit_codes.OK]) == code


def test_of_several_codes_the_one_to_act_on_wins() -> None:
    """4 > 10 > 9 > 6 > 8 > 7 > 5 > 1 > 3."""
    order = [4, 10, 9, 6, 8, 7, 5, 1, 3, 0]
    for better, lesser in itertools.combinations(order, 2):
        assert worst([lesser, better]) == worst([better, lesser, lesser]) == better
    assert worst([]) == 0


def test_a_group_of_errors_ends_with_the_worst() -> None:
    group = ExceptionGroup("both", [errors.DeadlineExceededError("x"), errors.IntegrityError("y")])
    assert code_of(group) == exit_codes.INTEGRITY


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (errors.LocalResourceError("x"), 9),
        (errors.PermissionDeniedError("x"), 6),
        (OSError(errno.ENOSPC, "x"), 9),
        (ZeroDivisionError("x"), 1),
        (None, 1),
    ],
)
def test_an_abort_ends_with_the_code_of_its_cause(cause: Exception | None, code: int) -> None:
    error = errors.CheckpointAbortedError("aborted")
    error.__cause__ = cause
    assert code_of(error) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), 9),
        (OSError(errno.EMFILE, "x"), 9),
        (OSError(errno.EIO, "x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_an_error_that_is_not_ours_has_a_code_too(error: Exception, code: int) -> None:
    assert code_of(error) == code
