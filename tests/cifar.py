"""CIFAR-10 for tests: the real images where KIT_TEST_DATA names their folder, else made-up ones of the same form."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pytest

FOLDER = "cifar-10-batches-py"
LABELS = "airplane automobile bird cat deer dog frog horse ship truck".split()
IMAGES = 1000  # in each of the six files, as in the real subset that the tests were written with


def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder that holds the data set."""
    real = os.environ.get("KIT_TEST_DATA")
    if real:
        assert Path(real, FOLDER).is_dir(), f"KIT_TEST_DATA={real} contains no {FOLDER}"
        return real
    made = tmp_path_factory.mktemp("cifar")
    make(made)
    return str(made)


def make(target: Path) -> None:
    """Write a data set that a network can learn: each class is a pattern of its own, under noise. Always the same bytes."""
    random = np.random.default_rng(0)
    # Coarse patterns, so that shifting an image by a few pixels and mirroring it leaves the class to be seen.
    coarse_KCHW = random.integers(40, 216, (10, 3, 4, 4))
    patterns_KCHW = coarse_KCHW.repeat(8, axis=2).repeat(8, axis=3)
    batches = target / FOLDER
    batches.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels_N = random.integers(0, 10, IMAGES)
        images_NCHW = patterns_KCHW[labels_N] + random.normal(0, 60, (IMAGES, 3, 32, 32))
        batch = {
            "batch_label": name,
            "labels": labels_N.tolist(),
            "data": images_NCHW.clip(0, 255).astype(np.uint8).reshape(IMAGES, 3072),
        }
        (batches / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {"num_cases_per_batch": IMAGES, "label_names": LABELS, "num_vis": 3072}
    (batches / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
