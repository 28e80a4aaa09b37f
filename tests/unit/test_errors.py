from __future__ import annotations

import pickle

import pytest

from ckptstore import errors

ERROR_CLASSES = [
    c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.CkptStoreError)
]
EXIT_CODES = {1, 2, 4, 5, 6, 7, 8, 9, 10}


@pytest.mark.parametrize("klass", ERROR_CLASSES, ids=lambda c: c.__name__)
def test_errors_survive_pickling(klass: type[errors.CkptStoreError]) -> None:
    before: errors.CkptStoreError
    if issubclass(klass, errors.StoreError):
        before = klass("gone", verb="head", key="a/b")
    elif issubclass(klass, errors.IntegrityError):
        before = klass("gone", damage=(errors.Damage("a/b", 3, 12, "00", "ff"),))
    else:
        before = klass("gone")
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is klass
    assert str(after) == str(before)
    assert vars(after) == vars(before)


@pytest.mark.parametrize("klass", ERROR_CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_an_exit_code_that_is_documented(
    klass: type[errors.CkptStoreError],
) -> None:
    assert klass.exit_code in EXIT_CODES
