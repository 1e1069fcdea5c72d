"""
CIFAR-10 for cifar10.py: downloaded once per node, kept on the device, and augmented there.

Krizhevsky 2009, 170 MB. A folder cifar-10-batches-py that is there already is used as it is, whatever the number of its
images. Tensor shapes: N images, C channels, H height, W width.
"""

import hashlib
import io
import pickle
import socket
import tarfile
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

import numpy as np
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
FOLDER = "cifar-10-batches-py"
# Tensor cores want the channels together. A CPU would like it, too (a fifth faster), but with fewer than 8 channels
# torch 2.13 then writes beyond its memory.
LAYOUT = torch.channels_last if torch.cuda.is_available() else torch.contiguous_format


def download(data):
    """Puts the official data set into the folder `data`; raises OSError or HTTPException."""
    data.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(URL, timeout=60) as response:
        archive = response.read()
    md5 = hashlib.md5(archive, usedforsecurity=False).hexdigest()
    if md5 != MD5:
        raise OSError(f"{URL} has md5 {md5}, expected {MD5}")
    # Nodes may share `data`, and each downloads: the first that has the whole moves it into place.
    with tempfile.TemporaryDirectory(dir=data, prefix=".download-") as part:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            # Older releases of Python, such as Debian 12's, know no filters.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(part)  # noqa: S202 - its md5 is known
        try:
            Path(part, FOLDER).rename(data / FOLDER)
        except OSError:
            if not (data / FOLDER).is_dir():
                raise


def ensure(data, me):
    """Returns when every node has the data set, or ends the run if one has not."""
    problem, where = "", f"{data.resolve()} on {socket.gethostname()}"
    if me.local_rank == 0 and not (data / FOLDER).is_dir():
        print(f"downloading {URL} to {where}", flush=True)
        try:
            download(data)
        except (OSError, HTTPException) as error:
            problem = f"no {FOLDER} in {where}, and the download failed: {error}"
    # A barrier that carries the outcome, so that no rank waits for one that gave up.
    failures = torch.tensor(1 if problem else 0, device=me.device)
    dist.all_reduce(failures)
    if failures:
        fix = f"name the folder that holds {FOLDER} with --data, or fetch it where there is a network:"
        ranks.fail(problem, f"{fix}\n       mkdir -p {data} && curl -L {URL} | tar xz -C {data}")


def read(data, names, device):
    """Returns images_NCHW (bytes) and labels_N of the batch files, on the device: 180 MB in all."""
    # Python 2 wrote these; latin1 is the encoding that leaves the bytes of its arrays alone.
    batches = [
        pickle.loads((data / FOLDER / name).read_bytes(), encoding="latin1") for name in names
    ]
    images_NCHW = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels_N = np.concatenate([batch["labels"] for batch in batches])
    return torch.from_numpy(images_NCHW).to(device), torch.from_numpy(labels_N).to(device)


def load(data, me):
    """Returns (images_NCHW, labels_N) to train on, and to test with, or ends the run if a node cannot get them."""
    ensure(data, me)
    train = [f"data_batch_{number}" for number in range(1, 6)]
    return read(data, train, me.device), read(data, ["test_batch"], me.device)


def augment(images_NCHW):
    """Returns each image shifted by up to 4 pixels over a black border, and half of them mirrored."""
    n, device = len(images_NCHW), images_NCHW.device
    top_N1, left_N1 = torch.randint(0, 9, (2, n, 1), device=device)
    mirrored_N1 = torch.rand(n, 1, device=device) < 0.5
    pixels_W = torch.arange(32, device=device)
    rows_NH = top_N1 + pixels_W
    columns_NW = left_N1 + torch.where(mirrored_N1, pixels_W.flip(0), pixels_W)
    n_N111 = torch.arange(n, device=device).view(n, 1, 1, 1)
    c_C11 = torch.arange(3, device=device).view(3, 1, 1)
    # One gather for the whole batch, with an index that broadcasts to NCHW.
    padded_NCHW = F.pad(images_NCHW, (4, 4, 4, 4))
    return padded_NCHW[n_N111, c_C11, rows_NH[:, None, :, None], columns_NW[:, None, None, :]]


def normalize(images_NCHW):
    """Returns bytes as floats of mean 0 and deviation 1 over CIFAR-10: one of each for all three channels."""
    return ((images_NCHW.float() - 120.7) / 64.2).to(memory_format=LAYOUT)
