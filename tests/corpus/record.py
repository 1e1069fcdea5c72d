"""Causes the failures of this folder again, and records what each run directory then holds.

    .venv/bin/python tests/corpus/record.py                  all that can be caused here
    .venv/bin/python tests/corpus/record.py segfault ...     these
    .venv/bin/python tests/corpus/record.py --list

Most run by `kit run` on this machine, as root where a limit or a disk of their own is needed. A new one needs a Case in LOCAL. Those of GPU want an NVIDIA GPU, those of DOCKER the images of tests/cluster/images.sh, those of CLUSTER a
running cluster (tests/cluster/cluster.sh up, then install.sh). A recording is a run directory without its scripts, and a file
`cause` with the name of the cause that `kit why` must show first.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLACE = Path("/tmp/kit-corpus")
RANK = 'import os, sys, time\nrank = int(os.environ["RANK"])\n'
GLOO = 'import os, time, torch, torch.distributed as dist\ndist.init_process_group("gloo")\nrank = dist.get_rank()\n'
FAIL_1 = "if rank == 1:\n    time.sleep(0.5)\n    {}\ntime.sleep(60)\n"


@dataclass(frozen=True)
class Case:
    cause: str
    program: str = ""  # Python, which becomes train.py
    options: tuple[str, ...] = ("-j", "1x2", "--launcher", "srun")
    arguments: tuple[str, ...] = ()
    around: str = ""  # bash that starts kit with "$@"
    before: str = ""  # bash in the project's folder
    job: str = ""  # a job file instead of train.py
    runtime: tuple[str, ...] = ("--runtime", "none")


TORCHRUN = ("-j", "1x2")
TWO_NODES = ("-j", "2x1")
DOCKER_IMAGE = ("--runtime", "docker", "--image", "docker://kit-test/train:latest")
IN_200_MB = """
group=/sys/fs/cgroup/memory/kit-corpus; mkdir -p "${group}"; echo %s >"${group}/memory.limit_in_bytes"; echo $$ >"${group}/cgroup.procs"; exec "$@"
"""
SMALL_DISK = 'unshare --mount bash -c \'mount -t tmpfs -o size=%s none %s && exec "$@"\' bash "$@"'


def failing(statement: str, before: str = "") -> str:
    """Rank 1 of two fails, while the other works."""
    return RANK + before + FAIL_1.format(statement)


LOCAL = {
    "exception": Case("unknown", GLOO + 'if rank == 1:\n    raise RuntimeError("the tokenizer has no pad token")\ndist.barrier()\n', TORCHRUN),
    "exit-code": Case("unknown", failing("sys.exit(7)")),
    "kernel-kills-a-rank": Case("killed", failing("held = [bytearray(10**7) for _ in range(100)]"), around=IN_200_MB % "200M"),
    "kernel-kills-a-rank-under-torchrun": Case(
        "killed",
        GLOO + "held = [bytearray(10**7) for _ in range(300)] if rank == 1 else []\ndist.barrier()\n",
        TWO_NODES,
        around=IN_200_MB % "1500M",
    ),
    "kernel-kills-a-loader": Case(
        "host-out-of-memory",
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\nclass Big(Dataset):\n    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return len([bytearray(10**7) for _ in range(300)])\n"
        "if __name__ == '__main__':\n    for batch in DataLoader(Big(), num_workers=1): pass\n",
        ("-j", "1x1"),
        around=IN_200_MB % "1200M",
    ),
    "samples-of-different-sizes": Case(
        "shape-mismatch",
        "import torch\nfrom torch.utils.data import DataLoader\nfor batch in DataLoader([torch.ones(2), torch.ones(3)], batch_size=2): pass\n",
        ("-j", "1x1", "--launcher", "srun"),
    ),
    "loss-without-a-model": Case("no-gradient", "import torch\ntorch.ones(2).sum().backward()\n", ("-j", "1x1", "--launcher", "srun")),
    "recomputed-by-a-counter": Case(
        "recomputed-otherwise",
        "import torch\nfrom torch.utils.checkpoint import checkpoint\ncalls = []\ndef layer(x):\n    calls.append(1)\n    return (x.repeat(len(calls)) ** 2).sum()\n"
        "checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=False).backward()\n",
        ("-j", "1x1", "--launcher", "srun"),
    ),
    "torchscript-as-a-checkpoint": Case(
        "checkpoint-untrusted",
        "import torch\ntorch.jit.script(torch.nn.Linear(2, 2)).save('model.pt')\ntorch.load('model.pt')\n",
        ("-j", "1x1", "--launcher", "srun"),
    ),
    "program-of-the-program-missing": Case(
        "program-missing", "import subprocess\nsubprocess.run(['ffmpeg7', '-version'])\n", ("-j", "1x1", "--launcher", "srun")
    ),
    "folder-named-as-a-package": Case(
        "module-shadowed", "import wandb\nwandb.init()\n", ("-j", "1x1", "--launcher", "srun"), before="mkdir -p wandb && echo x >wandb/run-1.log"
    ),
    "model-folder-missing": Case(
        "model-missing", "from transformers import AutoConfig\nAutoConfig.from_pretrained('/models/qwen3')\n", ("-j", "1x1", "--launcher", "srun")
    ),
    "numpy-asks-for-too-much": Case("memory-error", "import numpy\nnumpy.zeros((10**8, 10**7))\n", ("-j", "1x1", "--launcher", "srun")),
    "torch-asks-for-too-much": Case("memory-error", "import torch\ntorch.empty(10**15)\n", ("-j", "1x1", "--launcher", "srun")),
    "shm-is-small": Case(
        "small-shm",
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "if __name__ == '__main__':\n    for batch in DataLoader(TensorDataset(torch.zeros(64, 100000)), batch_size=32, num_workers=2): pass\n",
        ("-j", "1x1"),
        around=SMALL_DISK % ("1M", "/dev/shm"),
    ),
    "mapped-file-cut-off": Case(
        "bus-error",
        failing(
            "print(mapped[9000])",
            "import mmap\nfile = open(f'data{rank}', 'wb+'); file.truncate(10000)\nmapped = mmap.mmap(file.fileno(), 10000)\nfile.truncate(0)\n",
        ),
    ),
    "port-taken": Case(
        "port-in-use",
        RANK + "import socket, torch.distributed as dist\n"
        "port = int(os.environ['MASTER_PORT']) - 1000\nlistener = socket.create_server(('', port)) if rank == 0 else None\ntime.sleep(1)\n"
        "dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)\n",
    ),
    "a-rank-comes-late": Case(
        "rendezvous-timeout",
        RANK
        + "import datetime, torch.distributed as dist\nif rank == 1: time.sleep(60)\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))\n",
    ),
    "nobody-listens": Case(
        "rendezvous-timeout",
        RANK
        + "import datetime, torch.distributed as dist\nos.environ['MASTER_PORT'] = '1'\nif rank == 0: time.sleep(60)\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))\n",
    ),
    "interface-missing": Case("no-such-interface", GLOO, (*TWO_NODES, "--env", "GLOO_SOCKET_IFNAME=eth9")),
    "different-collectives": Case(
        "ranks-disagree",
        GLOO + "if rank == 0: dist.all_reduce(torch.ones(2))\nelse: dist.broadcast(torch.ones(2), 0)\n",
        (*TORCHRUN, "--env", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ),
    "one-rank-has-another-shape": Case(
        "ranks-disagree",
        GLOO + "dist.all_reduce(torch.ones(10 if rank == 3 else 12))\n",
        ("-j", "2x2", "--env", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ),
    "different-sizes": Case("ranks-disagree", GLOO + "dist.all_reduce(torch.ones(2 + 20000 * rank))\ntime.sleep(5)\n", TWO_NODES),
    "different-models": Case(
        "ranks-disagree", GLOO + "from torch.nn.parallel import DistributedDataParallel\nDistributedDataParallel(torch.nn.Linear(4 + rank, 2))\n", TWO_NODES
    ),
    "unused-branch": Case(
        "unused-parameters",
        GLOO + "from torch.nn.parallel import DistributedDataParallel\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.used, self.idle = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n    def forward(self, x): return self.used(x)\n"
        "model = DistributedDataParallel(Model())\nfor step in range(2): model(torch.ones(1, 2)).sum().backward()\n",
        TWO_NODES,
    ),
    "recomputed-twice-in-ddp": Case(
        "parameter-ready-twice",
        GLOO + "from torch.nn.parallel import DistributedDataParallel\nfrom torch.utils.checkpoint import checkpoint\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer, self.first = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
        "    def forward(self, x): return checkpoint(self.layer, checkpoint(self.layer, self.first(x), use_reentrant=True), use_reentrant=True)\n"
        "model = DistributedDataParallel(Model())\nmodel(torch.ones(1, 2)).sum().backward()\n",
        TWO_NODES,
    ),
    "launcher-unseen": Case(
        "no-launcher",
        "import subprocess, sys\ntry: subprocess.run([sys.executable, '-c', 'import torch.distributed as dist; dist.init_process_group(\"gloo\")'], env={}, check=True)\n"
        "except subprocess.CalledProcessError: sys.exit(1)\n",
        ("-j", "1x1", "--launcher", "srun"),
    ),
    "plain-tensor-among-sharded-ones": Case(
        "mixed-tensors",
        GLOO + "from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh\n"
        "weight = distribute_tensor(torch.ones(4, 4), init_device_mesh('cpu', (2,)), [Shard(0)])\nweight + torch.ones(4, 4)\n",
        TORCHRUN,
    ),
    "frozen-and-trained-in-one-unit-of-fsdp": Case(
        "fsdp-units",
        GLOO + "from torch.distributed.fsdp import FullyShardedDataParallel\nmodel = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))\n"
        "model[0].requires_grad_(False)\nFullyShardedDataParallel(model, device_id=torch.device('cpu'))\n",
        TORCHRUN,
    ),
    "a-rank-hangs": Case(
        "collective-timeout",
        "import datetime, time, torch, torch.distributed as dist\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=4))\n"
        "if dist.get_rank() == 1: time.sleep(30)\ndist.all_reduce(torch.ones(1))\n",
        TWO_NODES,
    ),
    "a-rank-misses-the-barrier": Case(
        "collective-timeout",
        GLOO + "import datetime\nif rank == 1: time.sleep(30)\ndist.monitored_barrier(timeout=datetime.timedelta(seconds=3))\n",
        TWO_NODES,
    ),
    "module-missing": Case("module-missing", failing("import flash_attn")),
    "library-missing": Case("library-missing", failing("ctypes.CDLL('libnccl-net.so.2')", "import ctypes\n")),
    "file-of-a-package-alone": Case(
        "not-a-module",
        job="command: [python, model/train.py]\nlauncher: srun\nprocesses_per_node: 2\n",
        before="mkdir -p model && echo 'from .layers import Block' >model/train.py && touch model/__init__.py model/layers.py",
    ),
    "name-not-in-module": Case("import-failed", failing("from collections import Mapping")),
    "syntax": Case("syntax-error", "import os\nprint(f'epoch {os.environ['RANK'}')\n"),
    "arguments": Case(
        "wrong-arguments",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\nparser.parse_args()\n",
        arguments=("--lr", "fast"),
    ),
    "arguments-unknown": Case(
        "wrong-arguments",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\nparser.parse_args()\n",
        TORCHRUN,
        arguments=("--epoch", "3"),
    ),
    "dataset-missing": Case("dataset-missing", failing("open('/data/imagenet/train/index.json')")),
    "shard-cut-off": Case(
        "data-damaged",
        failing("for item in shard: shard.extractfile(item).read()", "import tarfile\nshard = tarfile.open('shard.tar', 'r|')\n"),
        before="head -c 100000 /dev/zero >sample && tar -cf whole.tar sample && head -c 50000 whole.tar >shard.tar",
    ),
    "cifar10-missing": Case(
        "dataset-missing",
        (ROOT / "train/cifar10.py").read_text(),
        TORCHRUN,
        ("--data", "/data/cifar"),
        before=f"cp {shlex.quote(str(ROOT))}/train/{{cifar10_data,ranks,resnet}}.py .",
    ),
    "config-missing": Case("file-missing", failing("open('configs/large.yaml')")),
    "script-missing": Case("program-missing", job="command: [bash, start.sh]\nlauncher: spawn\n"),
    "command-missing": Case("program-missing", job="command: [accelerated, train.py]\nlauncher: spawn\n"),
    "python-file-missing": Case("program-missing", job="command: [bash, -c, 'exec python tools/train.py']\nlauncher: spawn\n"),
    "not-executable": Case("not-executable", job="command: [bash, -c, 'exec ./tool']\nlauncher: spawn\n", before="printf 'echo hello\\n' >tool"),
    "another-cpus-program": Case(
        "not-executable",
        job="command: [./tool]\nlauncher: spawn\n",
        before="cp /bin/true tool; printf '\\xb7' | dd of=tool bs=1 seek=18 conv=notrunc status=none",
    ),
    "glibc": Case(
        "glibc-too-old",
        job="command: [./tool]\nlauncher: spawn\n",
        before="container=$(docker create debian:trixie true) && docker cp -L ${container}:/usr/bin/sort tool && docker rm ${container} >/dev/null",
    ),
    "disk-full": Case(
        "disk-full",
        "import torch\ntorch.save(torch.zeros(10**6), 'out/checkpoint.pt')\n",
        TORCHRUN,
        before="mkdir -p out",
        around=SMALL_DISK % ("1M", "out"),
    ),
    "disk-full-in-python": Case("disk-full", failing("open('out/log', 'wb').write(bytes(10**7))"), before="mkdir -p out", around=SMALL_DISK % ("1M", "out")),
    "name-not-resolved": Case("no-network", failing("urllib.request.urlopen('https://weights.invalid/model.bin')", "import urllib.request\n")),
    "model-not-downloaded": Case(
        "hub-unreachable",
        failing(
            "snapshot_download('openai-community/gpt2')",
            "sys.path.insert(0, os.path.abspath('site-packages'))\nos.environ.update(HF_HOME=os.path.abspath('cache'), HF_ENDPOINT='https://hub.invalid')\n"
            "from huggingface_hub import snapshot_download\n",
        ),
        before=f"{sys.executable} -m pip install --quiet --target site-packages huggingface_hub",
    ),
    "assertion": Case("assertion", failing("assert 7 % 4 == 0, 'the batch must divide by the number of ranks'")),
    "nan-gradient": Case(
        "not-a-number",
        GLOO + "torch.autograd.set_detect_anomaly(True)\nx = torch.tensor([-1.0 * rank], requires_grad=True)\ntorch.sqrt(x).sum().backward()\ndist.barrier()\n",
        TORCHRUN,
    ),
    "tensor-changed-in-place": Case(
        "modified-in-place",
        GLOO + "y = torch.ones(4, requires_grad=True).exp()\nif rank == 1: y += 1\ny.sum().backward()\ndist.barrier()\n",
        TORCHRUN,
    ),
    "nan-loss": Case("not-a-number", failing("raise ValueError('step 812: loss is nan, stopping')")),
    "too-many-files": Case("too-many-files", failing("held = [open('/dev/null') for _ in range(2000)]"), around='ulimit -n 256; exec "$@"'),
    "segfault": Case("segfault", failing("ctypes.string_at(0)", "import ctypes\n")),
    "segfault-under-torchrun": Case("segfault", GLOO + "import ctypes\nif rank == 1: ctypes.string_at(0)\ndist.barrier()\n", TORCHRUN),
    "illegal-instruction": Case(
        "illegal-instruction",
        failing(
            "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
            "import ctypes, mmap\ncode = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\ncode.write(b'\\x0f\\x0b')\n",
        ),
    ),
    "usr1": Case("unhandled-signal", failing("subprocess.run(['kill', '-USR1', str(os.getpid())]); time.sleep(9)", "import subprocess\n")),
    "killed-by-term": Case("terminated", failing("subprocess.run(['kill', str(os.getpid())]); time.sleep(9)", "import subprocess\n")),
    "abort": Case("aborted", failing("os.abort()")),
    "shapes": Case("shape-mismatch", GLOO + "if rank == 1: torch.nn.Linear(64, 10)(torch.ones(8, 32))\ndist.barrier()\n", TORCHRUN),
    "batch-sizes": Case(
        "shape-mismatch", "import torch\ntorch.nn.functional.cross_entropy(torch.ones(8, 10), torch.zeros(4, dtype=torch.long))\n", ("-j", "1x1")
    ),
    "devices": Case("device-mismatch", "import torch\ntorch.nn.Linear(4, 4, device='meta')(torch.ones(1, 4))\n", ("-j", "1x1")),
    "dtypes": Case("dtype-mismatch", "import torch\ntorch.nn.Linear(4, 4, dtype=torch.bfloat16)(torch.ones(1, 4))\n", ("-j", "1x1")),
    "checkpoint-of-another-model": Case(
        "checkpoint-mismatch", "import torch\ntorch.nn.Linear(4, 4).load_state_dict({'module.weight': torch.ones(4, 4)})\n", ("-j", "1x1")
    ),
    "checkpoint-cut-off": Case(
        "checkpoint-damaged", "import os, torch\ntorch.save(torch.ones(10**4), 'c.pt')\nos.truncate('c.pt', 20000)\ntorch.load('c.pt')\n", ("-j", "1x1")
    ),
    "checkpoint-with-code": Case(
        "checkpoint-untrusted", "import pathlib, torch\ntorch.save({'a': pathlib.Path('x')}, 'c.pt')\ntorch.load('c.pt')\n", ("-j", "1x1")
    ),
    "cuda-in-a-cpu-torch": Case("torch-without-cuda", "import torch\ntorch.nn.Linear(1, 1).cuda()\n", ("-j", "1x1")),
    "nccl-in-a-cpu-torch": Case("torch-without-cuda", GLOO.replace("gloo", "nccl"), TORCHRUN),
    "a-rank-ends-early": Case("peer-gone", GLOO + "if rank == 0: dist.all_reduce(torch.ones(1))\n", TWO_NODES),
    "mesh-not-complete": Case(
        "rendezvous-timeout",
        RANK + "import datetime, torch.distributed as dist\nwait = datetime.timedelta(seconds=4)\n"
        "if rank == 0: dist.init_process_group('gloo', timeout=wait)\n"
        "store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, False, wait)\ntime.sleep(60)\n",
    ),
    "too-many-threads": Case(
        "too-many-processes",
        failing("held = [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(500)]", "import threading\n"),
        around='group=/sys/fs/cgroup/pids/kit-corpus; mkdir -p "${group}"; echo 150 >"${group}/pids.max"; echo $$ >"${group}/cgroup.procs"; exec "$@"',
    ),
    "file-too-large": Case("file-too-large", failing("open('log.bin', 'wb').write(bytes(10**8))"), around='ulimit -f 20000; exec "$@"'),
    "token-missing": Case(
        "no-access",
        failing(
            "urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/model')",
            "import http.server, threading, urllib.request\nclass Closed(http.server.BaseHTTPRequestHandler):\n    def do_GET(self): self.send_error(401)\n"
            "server = http.server.HTTPServer(('127.0.0.1', 0), Closed)\nthreading.Thread(target=server.serve_forever, daemon=True).start()\n",
        ),
    ),
    "checkpoint-of-a-gpu": Case(
        "checkpoint-of-a-gpu",
        "import torch, torch.serialization\ntorch.serialization.location_tag = lambda storage: 'cuda:0'\n"
        "torch.save(torch.ones(4), 'c.pt')  # as one that was saved from a GPU\ntorch.load('c.pt')\n",
        ("-j", "1x1"),
    ),
    "spawned-rank-fails": Case(
        "module-missing",
        "import torch.multiprocessing as mp\ndef work(rank):\n    import apex\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n",
        ("-j", "1x2", "--launcher", "spawn"),
    ),
    "spawned-rank-crashes": Case(
        "segfault",
        "import ctypes, torch.multiprocessing as mp\ndef work(rank):\n    ctypes.string_at(0)\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n",
        ("-j", "1x2", "--launcher", "spawn"),
    ),
    "ctrl-c": Case("cancelled", RANK + "time.sleep(60)\n", around='exec timeout --signal=INT 3 "$@"'),
    "no-apptainer": Case("runtime-missing", RANK, runtime=("--runtime", "apptainer", "--image", "x.sif"), before="touch x.sif"),
}

ON_A_GPU = ("-j", "1x1", "--gpus-per-node", "1")
ON_TWO_NODES = ("-j", "2x1", "--gpus-per-node", "1")  # which share it
NCCL = (
    "import datetime, torch, torch.distributed as dist\ntorch.cuda.set_device(0)\nwait = datetime.timedelta(seconds=5)\n"
    "dist.init_process_group('nccl', timeout=wait, device_id=torch.device('cuda', 0))\n"
)
# What programs that use other libraries begin with. The runs with it were recorded by `kit run` on an H200, with these programs, outside of this
# folder: their paths, names and command lines are those that record_local() gives, and one long log was cut where it says so. They need what they
# import (JAX and CuPy for CUDA 13, Lightning, Transformers, without flash-attn), nvcc and ninja.
BEGIN = "import os, torch\nimport torch.nn as nn, torch.nn.functional as F\ntorch.cuda.set_device(0)\n\n"
OTHER_HOME = 'HOME=/tmp/home exec "$@"'  # where torch compiles extensions; its messages name the folder
HOLD = "import time, torch\nheld = torch.empty(torch.cuda.mem_get_info()[0] * 9 // 10, dtype=torch.uint8, device='cuda')\nprint('held', flush=True)\ntime.sleep(60)\n"

GPU = {
    "gpu-too-small": Case("gpu-out-of-memory", "import torch\nstates = [torch.ones(2**30, device='cuda') for layer in range(100)]\n", ON_A_GPU),
    "gpu-in-use": Case(
        "gpu-in-use",
        f"import subprocess, sys, torch\nother = subprocess.Popen([sys.executable, '-c', {HOLD!r}], stdout=subprocess.PIPE)\nother.stdout.readline()\n"
        "try:\n    torch.ones(torch.cuda.mem_get_info()[1] // 8, device='cuda')\nfinally:\n    other.kill()\n",
        ON_A_GPU,
    ),
    "index-beyond-an-embedding": Case(
        "index-out-of-range", "import torch\nprint(torch.nn.Embedding(10, 4).cuda()(torch.tensor([10], device='cuda')).sum().item())\n", ON_A_GPU
    ),
    "label-beyond-the-classes": Case(
        "index-out-of-range",
        "import torch\nloss = torch.nn.functional.cross_entropy(torch.ones(8, 10, device='cuda'), torch.full((8,), 10, device='cuda'))\nprint(loss.item())\n",
        ON_A_GPU,
    ),
    "pointer-of-nobody": Case(
        "illegal-gpu-access",
        "import torch, triton, triton.language as tl\n@triton.jit\ndef fill(place): tl.store(place + (1 << 42), 1.0)\n"
        "fill[(1,)](torch.zeros(1, device='cuda'))\ntorch.cuda.synchronize()\n",
        ON_A_GPU,
    ),
    "gpu-of-a-larger-node": Case("no-such-gpu", "import torch\ntorch.cuda.set_device(3)\n", ON_A_GPU),
    "two-ranks-on-one-gpu": Case("gpu-shared", NCCL, ("-j", "1x2", "--env", "CUDA_VISIBLE_DEVICES=0")),
    "gpus-hidden": Case("no-driver", "import torch\ntorch.zeros(1).cuda()\n", ("-j", "1x1", "--env", "CUDA_VISIBLE_DEVICES=")),
    "gpu-and-cpu": Case("device-mismatch", "import torch\ntorch.nn.Linear(4, 4).cuda()(torch.ones(1, 4))\n", ON_A_GPU),
    "nccl-waits-too-long": Case(
        "rank-missing",
        NCCL + "import time\nones = torch.ones(4, device='cuda')\ndist.all_reduce(ones)\nif dist.get_rank() == 1: time.sleep(60)\n"
        "dist.all_reduce(ones)\ntorch.cuda.synchronize()\n",
        ON_TWO_NODES,
    ),
    "nccl-different-sizes": Case(
        "ranks-disagree", NCCL + "dist.all_reduce(torch.ones(2**10 if dist.get_rank() else 2**22, device='cuda'))\ntorch.cuda.synchronize()\n", ON_TWO_NODES
    ),
    "nccl-peer-killed": Case(
        "killed",
        NCCL
        + "import os\nfor step in range(50):\n    dist.all_reduce(torch.ones(4, device='cuda'))\n    if dist.get_rank() and step > 20: os.kill(os.getpid(), 9)\n",
        ON_TWO_NODES,
    ),
    "nccl-interface-missing": Case("no-such-interface", NCCL, (*ON_A_GPU, "--env", "NCCL_SOCKET_IFNAME=eth9")),
    "no-compiler": Case(
        "compiler-missing",
        "import os, torch\nos.environ.pop('CC', None)\nos.environ['PATH'] = '/nowhere'\ntorch.compile(lambda x: torch.relu(x) * 2)(torch.ones(4096, device='cuda'))\n",
        (*ON_A_GPU, "--env", "TRITON_CACHE_DIR=triton-cache", "--env", "TORCHINDUCTOR_CACHE_DIR=inductor-cache"),
    ),
    "gpu-too-small-for-jax": Case("gpu-out-of-memory", BEGIN + "import jax, jax.numpy as jnp\nx = jnp.ones((1 << 19, 1 << 18)); print(x.sum())\n", ON_A_GPU),
    "jax-beside-torch": Case(
        "gpu-out-of-memory",
        BEGIN + 'hold = torch.empty(int(torch.cuda.mem_get_info()[0] * 0.97), dtype=torch.uint8, device="cuda")\n'
        "import jax, jax.numpy as jnp\nx = jnp.ones((1 << 14, 1 << 14)); print((x @ x).sum())\n",
        ON_A_GPU,
    ),
    "gpu-too-small-for-cupy": Case("gpu-out-of-memory", BEGIN + "import cupy\ncupy.ones(1 << 40)\n", ON_A_GPU),
    "cpu-tensor-in-nccl": Case(
        "cpu-tensor-in-nccl", BEGIN + 'import torch.distributed as dist\ndist.init_process_group("nccl")\ndist.all_reduce(torch.ones(1))\n', ON_A_GPU
    ),
    "model-not-on-the-gpu": Case(
        "device-mismatch",
        BEGIN + 'import torch.distributed as dist\ndist.init_process_group("nccl")\nnn.parallel.DistributedDataParallel(nn.Linear(4, 4), device_ids=[0])\n',
        ON_A_GPU,
    ),
    "lightning-names-another-gpu": Case("no-such-gpu", BEGIN + 'import lightning as L\nL.Trainer(accelerator="gpu", devices=[3])\n', ON_A_GPU),
    "flash-attention-missing": Case(
        "module-missing",
        BEGIN + "from transformers import AutoModelForCausalLM, LlamaConfig\n"
        "c = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=64)\n"
        'AutoModelForCausalLM.from_config(c, attn_implementation="flash_attention_2")\n',
        ON_A_GPU,
    ),
    "capture-waits-for-the-gpu": Case(
        "cuda-graph-capture",
        BEGIN + 'g = torch.cuda.CUDAGraph()\nx = torch.ones(4, device="cuda")\nwith torch.cuda.graph(g):\n    y = x.sum().item()\n',
        ON_A_GPU,
    ),
    "result-of-a-graph-overwritten": Case(
        "cuda-graph-overwritten",
        BEGIN + '@torch.compile(mode="reduce-overhead")\ndef f(x): return x * 2\nx = torch.ones(4, device="cuda")\n'
        "a = f(x)\na = f(x); b = f(x); c = f(x)\nprint(a + c)\n",
        ON_A_GPU,
    ),
    "half-precision-parameters": Case(
        "grad-scaler",
        BEGIN + 'm = nn.Linear(4, 4).cuda().half()\no = torch.optim.SGD(m.parameters(), lr=0.1); s = torch.amp.GradScaler("cuda")\n'
        's.scale(m(torch.ones(2, 4, device="cuda").half()).sum()).backward()\ns.unscale_(o)\n',
        ON_A_GPU,
    ),
    "loss-not-scaled": Case(
        "grad-scaler",
        BEGIN + 'm = nn.Linear(4, 4).cuda()\no = torch.optim.SGD(m.parameters(), lr=0.1); s = torch.amp.GradScaler("cuda")\ns.step(o)\n',
        ON_A_GPU,
    ),
    "backward-twice": Case(
        "backward-twice", BEGIN + 'x = torch.ones(3, device="cuda", requires_grad=True); y = (x * x).sum(); y.backward(); y.backward()\n', ON_A_GPU
    ),
    "data-on-the-gpu-pinned": Case(
        "pinned-on-the-gpu",
        BEGIN + 'from torch.utils.data import DataLoader\nfor b in DataLoader(torch.ones(8, device="cuda"), batch_size=2, pin_memory=True): pass\n',
        ON_A_GPU,
    ),
    "extension-with-an-error": Case(
        "extension-not-built",
        BEGIN + "from torch.utils.cpp_extension import load_inline\n"
        'load_inline("e2", cpp_sources="void f();", cuda_sources="__global__ void k() { oops; } void f() { k<<<1,1>>>(); }", functions=["f"])\n',
        ON_A_GPU,
        around=OTHER_HOME,
    ),
    "extension-for-an-old-gpu": Case(
        "extension-not-built",
        BEGIN + 'os.environ["TORCH_CUDA_ARCH_LIST"] = "3.5"\nfrom torch.utils.cpp_extension import load_inline\n'
        'load_inline("e", cpp_sources="void f();", cuda_sources="__global__ void k() {} void f() { k<<<1,1>>>(); }", functions=["f"], verbose=True)\n',
        ON_A_GPU,
        around=OTHER_HOME,
    ),
    "attention-in-single-precision": Case(
        "no-attention-kernel",
        BEGIN + 'from torch.nn.attention import sdpa_kernel, SDPBackend\nq = torch.ones(1, 1, 8, 8, device="cuda")\n'
        "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n    F.scaled_dot_product_attention(q, q, q)\n",
        ON_A_GPU,
    ),
}

DOCKER = {
    "image-without-torch": Case("no-torch", RANK, TORCHRUN, runtime=("--runtime", "docker", "--image", "docker://kit-test/python:latest")),
    "image-not-in-the-engine": Case("image-missing", RANK, runtime=("--runtime", "docker", "--image", "docker://127.0.0.1:9/nowhere:1")),
    "mount-that-the-engine-refuses": Case("container-not-started", RANK, runtime=(*DOCKER_IMAGE, "--mount", "/tmp:/proc/sys")),
    "read-only-mount": Case(
        "read-only", failing("open('/data/index', 'w')"), before="mkdir -p data", runtime=(*DOCKER_IMAGE, "--mount", f"{PLACE}/read-only-mount/data:/data:ro")
    ),
}


def record_local(name: str, case: Case) -> None:
    project = PLACE / name
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    (project / "train.py").write_text(case.program)
    target = "train.py"
    if case.job:
        target = "job.yaml"
        (project / target).write_text(case.job)
    shell(case.before or ":", project)
    command = [sys.executable, "-m", "kit", "run", target, *(() if case.job else case.options), *case.runtime, "--output", "run", "--", *case.arguments]
    bash = ["bash", "-c", case.around or 'exec "$@"', "bash"]
    environment = {**os.environ, "XDG_STATE_HOME": str(PLACE / "state")}
    done = subprocess.run([*bash, *command], cwd=project, env=environment, capture_output=True, text=True, errors="replace", timeout=100)
    if not (project / "run").is_dir():
        raise SystemExit(f"{name}: kit refused it:\n{done.stdout}{done.stderr}")
    keep(name, case.cause, project / "run")


def shell(script: str, folder: Path) -> None:
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True, timeout=120)


def keep(name: str, cause: str, run: Path) -> None:
    """Copies of a run directory what `kit why` reads, without the paths of this machine."""
    place = HERE / name
    shutil.rmtree(place, ignore_errors=True)
    for path in [run / "run.json", *sorted((run / "log").rglob("*"))]:
        if path.is_file() and path.suffix in (".json", ".jsonl", ".out") and ".torchrun" not in path.parts:
            copy = place / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_bytes().decode("utf-8", "surrogateescape")
            places = [
                (os.environ["PATH"], "/usr/local/bin:/usr/bin:/bin"),
                (sys.prefix, "/opt/venv"),
                (sys.base_prefix, "/opt/python"),
                (str(ROOT), "/opt/kit"),
            ]
            for here, there in places:
                text = text.replace(here, there).replace(os.path.realpath(here), there)
            copy.write_bytes(text.encode("utf-8", "surrogateescape"))
    (place / "cause").write_text(f"{cause}\n")
    print(f"{name}: {sum(path.stat().st_size for path in place.rglob('*') if path.is_file())} bytes", flush=True)


# ---------------------------------------------------------------- on the Slurm cluster in Docker

SLEEP = RANK + "print('up', rank, flush=True)\ntime.sleep(300)\n"
SIF = ("--image", "/images/train.sif", "--runtime", "apptainer", "--launcher", "srun")


class OnCluster:
    """A project's folder on the cluster, and one job of it."""

    def __init__(self, name: str, cause: str, program: str = SLEEP) -> None:
        sys.path.insert(0, str(ROOT / "tests/cluster"))
        from slurm_cluster import Cluster, control, until

        self.cluster, self.until, self.control = Cluster(Path(control("where").strip())), until, control
        self.name, self.cause = name, cause
        self.folder = self.cluster.shared / name
        self.cluster.run("ctl", "rm", "-rf", self.inside, root=True)
        self.cluster.run("ctl", "mkdir", "-m", "777", self.inside)
        (self.folder / "train.py").write_text(program)
        self.job = 0

    @property
    def inside(self) -> str:
        return str(self.cluster.path(self.folder))

    def kit(self, *arguments: str) -> None:
        self.cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit "$@"', "bash", self.inside, *arguments, timeout=150)

    def submit(self, *options: str) -> None:
        self.kit("submit", "train.py", *SIF, "--output", "run", *options)
        import json

        self.job = int(json.loads((self.folder / "run/run.json").read_text())["job_id"])

    def render(self, *options: str) -> None:
        self.kit("render", "train.py", *SIF, "--output", "run", *options)

    def sbatch(self, before: str = ":") -> None:
        line = self.cluster.run("ctl", "bash", "-c", f"cd {self.inside} && {before}; sbatch --parsable run/run_script.sh")
        self.job = int(line.stdout.split()[-1])

    def running(self, rank: int = 0) -> None:
        """Waits for a rank to say that it is up."""
        log = self.folder / f"run/log/{self.job}/rank{rank}.out"
        self.until(lambda: log.exists() and "up" in log.read_text(), 90, f"{self.name}: the ranks do not start")

    def root(self, node: str, script: str) -> None:
        self.cluster.run(node, "bash", "-c", script, root=True)

    def keep(self, timeout_s: float = 150) -> None:
        self.cluster.wait(self.job, timeout_s)
        time.sleep(1)  # the daemons' last words
        keep(self.name, self.cause, self.folder / "run")

    def configure(self, lines: str, unlike: str | tuple[str, ...] = ()) -> None:
        """Adds lines to the cluster's slurm.conf, without those that it has of what they set."""
        file = self.cluster.shared.parent / "etc/slurm.conf"
        kept = [line for line in file.read_text().splitlines() if not unlike or not line.startswith(unlike)]
        file.write_text("\n".join([*kept, *lines.splitlines(), ""]))
        self.cluster.run("ctl", "scontrol", "reconfigure", root=True)
        time.sleep(3)


def time_limit(name: str) -> None:
    on = OnCluster(name, "time-limit")
    on.submit("-j", "2x1", "--time", "00:01:00")
    on.keep(240)


def preempted(name: str, grace_s: int, cause: str) -> None:
    """A notice of some seconds ends ranks that do not handle SIGTERM, and with them the job, before Slurm has a reason to give one."""
    on = OnCluster(name, cause)
    on.root("ctl", f"scontrol update partition=spot GraceTime={grace_s}")
    try:
        on.submit("-j", "3x1", "--slurm", "partition=spot", "--slurm", "exclusive")
        on.running()
        on.cluster.run("ctl", "srun", "--partition=urgent", "--exclusive", "--nodes=3", "true", timeout=120)
        on.keep()
    finally:
        on.root("ctl", "scontrol update partition=spot GraceTime=0")


def no_progress(name: str) -> None:
    """Ranks that ask to go on later at once, again and again."""
    on = OnCluster(name, "no-progress", "import sys\nsys.exit(75)\n")
    on.submit("-j", "1x1", "--on-preempt", "checkpoint")
    on.keep()


def out_of_memory(name: str) -> None:
    on = OnCluster(name, "host-out-of-memory", failing("held = [bytearray(10**7) for _ in range(300)]"))
    files = [on.cluster.shared.parent / "etc" / file for file in ("slurm.conf", "cgroup.conf")]
    before = [file.read_text() for file in files]
    files[1].write_text(before[1].replace("ConstrainRAMSpace=no", "ConstrainRAMSpace=yes"))
    on.configure("TaskPlugin=task/cgroup\nSelectTypeParameters=CR_CPU_Memory", ("TaskPlugin", "SelectTypeParameters"))
    try:
        on.submit("-j", "2x1", "--slurm", "mem=300M")
        on.keep()
    finally:
        for file, text in zip(files, before):
            file.write_text(text)
        on.configure("")


def cancelled(name: str) -> None:
    on = OnCluster(name, "cancelled")
    on.submit("-j", "2x1")
    on.running()
    on.cluster.run("ctl", "scancel", str(on.job))
    on.keep()


def node_failed(name: str) -> None:
    on = OnCluster(name, "node-failed")
    on.submit("-j", "3x1")
    on.running(2)
    on.cluster.kill_slurmd("node2")
    try:
        on.keep()
    finally:
        on.cluster.restore("node2")


def signalled(name: str, signal: str, cause: str) -> None:
    on = OnCluster(name, cause)
    on.submit("-j", "2x1")
    on.running(1)
    on.cluster.run("ctl", "scancel", f"--signal={signal}", str(on.job))
    on.keep()


def image_gone(name: str) -> None:
    on = OnCluster(name, "image-missing")
    on.root("ctl", f"cd {on.inside} && ln -s /images/train.sif gone.sif")
    on.render("-j", "3x1", "--image", "gone.sif")
    on.sbatch("rm -f gone.sif")
    on.keep()


def image_on_one_node(name: str, cause: str, other: str) -> None:
    """The nodes have copies of their own: node2's is not there, or another."""
    on = OnCluster(name, cause)
    for node in ("ctl", *on.cluster.nodes):
        on.root(node, "head -c 2M /images/train.sif >/scratch/own.sif" if node != "node2" else other)
    try:
        on.submit("-j", "3x1", "--image", "/scratch/own.sif")
        on.keep()
    finally:
        for node in ("ctl", *on.cluster.nodes):
            on.root(node, "rm -f /scratch/own.sif")


def image_damaged(name: str) -> None:
    on = OnCluster(name, "image-damaged")
    on.root("ctl", f"cd {on.inside} && head -c 1M /images/train.sif >cut-off.sif")
    on.submit("-j", "2x1", "--image", "cut-off.sif")
    on.keep()


def not_an_image(name: str) -> None:
    on = OnCluster(name, "image-damaged")
    on.root("ctl", f"cd {on.inside} && yes | head -c 1M >text.sif || true")
    on.submit("-j", "1x1", "--image", "text.sif")
    on.keep()


def mount_missing(name: str) -> None:
    on = OnCluster(name, "mount-missing")
    on.root("ctl", "mkdir -p /scratch/imagenet")
    on.submit("-j", "2x1", "--mount", "/scratch/imagenet:/data")
    on.keep()


def node_not_ready(name: str) -> None:
    """On node2 another process holds the lock of the image's copy."""
    on = OnCluster(name, "node-not-ready")
    (on.folder / "small.sif").write_bytes(b"x" * 4096)
    on.render("-j", "2x1", "--image", "small.sif", "--stage", "local", "--ready-timeout-s", "8")
    fingerprint = on.cluster.run(
        "ctl", "bash", "-c", f"cd {on.inside} && {{ stat -Lc %s small.sif; cat small.sif small.sif; }} | sha256sum | head -c 16"
    ).stdout
    lock = f"/tmp/kit-1000/images/.{fingerprint}.sif.lock"
    hold = subprocess.Popen(
        [
            str(ROOT / "tests/cluster/cluster.sh"),
            "exec",
            "node2",
            "bash",
            "-c",
            f"umask 077; mkdir -p ${{0%/*}} /tmp/kit-1000/images; exec flock {lock} sleep 40",
        ],
        stdin=subprocess.DEVNULL,
    )
    time.sleep(2)
    on.sbatch()
    on.keep()
    hold.wait()


def fewer_gpus(name: str) -> None:
    """The #SBATCH line is taken out, for the cluster has no GPUs to give; a site's variable shows one."""
    on = OnCluster(name, "fewer-gpus")
    on.render("-j", "1x1", "--gpus-per-node", "8")
    on.sbatch("sed -i /SBATCH.--gpus/d run/run_script.sh; export CUDA_VISIBLE_DEVICES=0")
    on.keep()


def permission_denied(name: str) -> None:
    on = OnCluster(name, "permission-denied", failing("open('out/checkpoint.pt', 'wb')"))
    on.root("ctl", f"mkdir -m 755 {on.inside}/out")
    on.submit("-j", "2x1")
    on.keep()


def rank_fails_on_the_cluster(name: str) -> None:
    on = OnCluster(name, "module-missing", GLOO + "if rank == 3: import apex\ndist.barrier()\n")
    on.submit("-j", "3x2", "--launcher", "torchrun")
    on.keep()


ON_CLUSTER: dict[str, Callable[[str], None]] = {
    "time-limit": time_limit,
    "preempted": lambda name: preempted(name, 0, "preempted"),
    "preempted-after-a-notice": lambda name: preempted(name, 3, "terminated"),
    "out-of-memory-in-slurm": out_of_memory,
    "no-progress": no_progress,
    "scancel": cancelled,
    "node-down": node_failed,
    "usr1-from-slurm": lambda name: signalled(name, "USR1", "unhandled-signal"),
    "int-from-slurm": lambda name: signalled(name, "INT", "interrupted"),
    "image-gone": image_gone,
    "image-gone-on-one-node": lambda name: image_on_one_node(name, "image-missing", "rm -f /scratch/own.sif"),
    "image-of-another-node": lambda name: image_on_one_node(name, "image-differs", "head -c 1M /images/train.sif >/scratch/own.sif"),
    "image-cut-off": image_damaged,
    "image-is-text": not_an_image,
    "mount-on-the-login-node-alone": mount_missing,
    "node-late": node_not_ready,
    "gpus-missing": fewer_gpus,
    "file-of-another": permission_denied,
    "module-missing-in-an-image": rank_fails_on_the_cluster,
}


def main(names: list[str]) -> None:
    cases: dict[str, Callable[[], None]] = {name: (lambda name=name, case=case: record_local(name, case)) for name, case in {**LOCAL, **GPU, **DOCKER}.items()}
    cases.update({name: (lambda name=name, act=act: act(name)) for name, act in ON_CLUSTER.items()})
    if names == ["--list"]:
        print("\n".join(cases))
        return
    for name in names or cases:
        cases[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
