"""Shared by all tests: the kit as a user calls it, and data to train on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kit_forks

pytest_plugins = ["whole_run"]

# What is installed beside this Python (kit, torchrun, shellcheck) is found, whether its environment is active or not.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# What the shell of who tests has set would be named by a warning at every submission: launch/kit/config/inherit.py.
_MISSED = ("NCCL_", "UCX_", "FI_", "GLOO_", "CUDA_", "OMP_", "TORCH_", "PYTORCH_", "XLA_", "HF_", "WANDB_")
for _name in [name for name in os.environ if name.startswith(_MISSED) and name != "CUDA_VISIBLE_DEVICES"]:
    del os.environ[_name]


@pytest.fixture(scope="session", autouse=True)
def no_history_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """However a test starts kit, the runs that it notes are not among those of who tests, and the layers that it removes are others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("history")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_runtime_folder_of_the_users() -> Iterator[None]:
    """Sockets, whose paths may not be long, and locks are neither in /run nor beside those of who tests."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def bubblewrap_apart_from_mounts_of_others() -> Iterator[None]:
    """Bubblewrap fails where a mount goes away while it starts, as with a container of Docker's that ends: here it sees none come or go."""
    apart, real = (shutil.which("unshare") or "", "--mount", "--propagation", "private"), shutil.which("bwrap")
    if not real or os.getuid() or not apart[0] or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        script = f'#!/bin/sh\n! {" ".join(apart)} true 2>/dev/null || exec {" ".join(apart)} {real} "$@"\nexec {real} "$@"\n'
        Path(folder, "bwrap").write_text(script)
        Path(folder, "bwrap").chmod(0o755)
        Path(folder).chmod(0o755)  # for tests that become another user
        patch.setenv("PATH", os.pathsep.join([folder, os.environ["PATH"]]))
        yield


@pytest.fixture(scope="session")
def forks() -> Iterator[kit_forks.Forks]:
    made = kit_forks.Forks()
    yield made
    made.close()


@pytest.fixture
def kit(forks: kit_forks.Forks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """Calls `kit ARGS` as a user would, in a folder of its own, and with a history of its own."""
    return caller(forks.run, tmp_path, tmp_path_factory.mktemp("state"))


@pytest.fixture
def kit_anew(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """Calls `kit ARGS` in a new Python each time, for a test that measures what a start costs."""
    return caller(kit_forks.start, tmp_path, tmp_path_factory.mktemp("state"))


def caller(run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, history: Path):
    def call(*arguments: str, cwd: Path = folder, check: bool = True, timeout_s: float = 300, **environment: str):
        done = run(arguments, cwd, {**os.environ, "XDG_STATE_HOME": str(history), **environment}, timeout_s)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return call


@pytest.fixture(scope="session")
def cifar_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that contains cifar-10-batches-py: that of KIT_TEST_DATA, or a made-up one of the same form."""
    import cifar  # it needs numpy, and most tests do without

    return cifar.folder(tmp_path_factory)
