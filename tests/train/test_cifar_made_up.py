"""The made-up CIFAR-10, with which the tests run where the real one is not."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest

import cifar


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KIT_TEST_DATA", raising=False)
        return Path(cifar.folder(tmp_path_factory)) / cifar.FOLDER


def test_it_has_the_form_of_the_real_one(made: Path) -> None:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    assert sorted(path.name for path in made.iterdir()) == sorted([*names, "batches.meta"])
    for name in names:
        batch = pickle.loads((made / name).read_bytes(), encoding="latin1")
        assert sorted(batch) == ["batch_label", "data", "labels"]
        assert (batch["data"].shape, str(batch["data"].dtype)) == ((1000, 3072), "uint8")
        assert len(batch["labels"]) == 1000 and set(batch["labels"]) == set(range(10))
        assert 100 < batch["data"].mean() < 140 and 50 < batch["data"].std() < 80  # as the programs normalize it


def test_it_is_the_same_every_time(made: Path, tmp_path: Path) -> None:
    cifar.make(tmp_path)

    def hashes(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    assert hashes(tmp_path / cifar.FOLDER) == hashes(made)


def test_the_real_one_is_taken_where_it_is(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / cifar.FOLDER).mkdir()
    monkeypatch.setenv("KIT_TEST_DATA", str(tmp_path))
    assert cifar.folder(tmp_path_factory) == str(tmp_path)
    monkeypatch.setenv("KIT_TEST_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(AssertionError, match="contains no cifar-10-batches-py"):
        cifar.folder(tmp_path_factory)
