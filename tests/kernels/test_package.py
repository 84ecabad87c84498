import importlib.metadata

import pytest
import transformers.utils.import_utils as import_utils

import kernels


def test_transformers_does_not_take_our_folder_for_hugging_faces_kernels() -> None:
    assert not import_utils.is_kernels_available()


def test_our_version_is_outside_the_range_transformers_wants_of_theirs() -> None:
    # Once rota is installed, its distribution is the one that provides an import called `kernels`, and transformers
    # compares *its* version with the range it wants.
    from packaging.version import Version

    try:
        ours = Version(importlib.metadata.version("rota"))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("rota is not installed here")
    assert not Version(import_utils.KERNELS_MIN_VERSION) <= ours < Version(import_utils.KERNELS_MAX_VERSION)


def test_hugging_faces_kernels_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.foreign_kernels_package() is None
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"kernels": "0.18.2"}[name])
    assert kernels.foreign_kernels_package() == "0.18.2"
