"""kit why: every recorded failure is named, and what is shown stands where it says."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest
from kit import slurm
from kit.base.errors import UsageError
from kit.diagnose.why import ends, findings, logs, report, run_facts, run_state, wording
from kit.diagnose.why.cause import NODE, RANK, Cause, Weight
from kit.plan.run_paths import RunPaths
from kit.runs import history, job_chain, job_status, local_processes
from kit.runs.usage import Usage

import event_lines
from plans import noted_run
from samples import HOSTILE_NAME, ROOT

CORPUS = ROOT / "tests" / "corpus"
DOCUMENT = ROOT / "docs" / "causes.md"
RECORDED = sorted(path.parent.name for path in CORPUS.glob("*/cause"))
NAMES = list(dict.fromkeys(cause.name for cause in findings.CAUSES))
CAUSE = re.compile(r"^cause: .*\((\S+)\)\n  shown by (\S+):(\d+):\n  \| (.*)\n  fix: (.+)$", re.MULTILINE)
WITHOUT_WORDS = ("deadline", "checkpointed", "left-early", "rank-missing", "exception", "exit-code")  # known by how the rank ended
CAUSING = "".join((ROOT / "tests/bash" / name).read_text() for name in ("faulty.py", "test_failing_runs.py"))  # tests that cause what they judge
PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:50345. This is typically caused by a remote worker crashing."


@pytest.fixture
def tmp_path(tame_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name needs no quotes in what is shown, and which every runtime can mount; the current one."""
    monkeypatch.chdir(tame_path)
    return tame_path


def copy_of(name: str, place: Path) -> Path:
    """A recorded run directory. Git keeps no times, so all files get the same."""
    run = shutil.copytree(CORPUS / name, place / "run")
    for path in run.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))
    return run


def run_directory(place: Path, ranks: dict[int, tuple[str, str]], batch: str = "", nodes: dict[str, str] | None = None, nprocs: int = 2) -> Path:
    """One made by hand: {rank: (its log, its note)}, the first to fail first."""
    logs = place / "log" / "7"
    logs.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"job_id": "7", "plan": {"layout": {"name": "made", "nodes": 2, "processes_per_node": nprocs}}}))
    batch = f"kit: node1: job 7 on node[1-2]: 2 x {nprocs} processes, runtime none, master 10.0.0.1:61007\n{batch}"
    (place / "log/slurm-7.out").write_text(batch)
    event_lines.of_batch(logs, batch)
    for age, (rank, (text, note)) in enumerate(ranks.items()):
        (logs / f"rank{rank}.out").write_text(text)
        event_lines.of_rank(logs, rank, note, 10**9 + age, batch.count(": job 7 on "))
    for name, text in (nodes or {}).items():
        (logs / f"{name}.out").write_text(text)
    return place


def show(word: Optional[str]) -> None:
    print(report.why(word))


def first_cause(said: str) -> str:
    return re.findall(r"^cause: .*\((\S+)\)$", said, re.MULTILINE)[0]


@pytest.mark.parametrize("name", RECORDED)
def test_the_cause_of_a_recorded_failure_is_named_first_with_its_line_and_a_fix(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(name, tmp_path)
    unknown: list[str] = []
    monkeypatch.setattr(run_facts.Facts, "__missing__", lambda _, field: unknown.append(field) or field)
    show(str(run))
    assert not unknown
    said = capsys.readouterr().out
    expected = (run / "cause").read_text().strip()
    assert len(said.splitlines()) <= 24
    if expected == "unknown":
        assert "cause: kit does not know it (unknown)\n" in said
        return
    found = CAUSE.search(said)
    assert found and found[1] == expected, said
    line = Path(found[2]).read_text().split("\n")[int(found[3]) - 1]
    if found[2].endswith(".jsonl"):  # an event is said in words
        event = json.loads(line)
        said = event.get("problem") or event.get("state") or f"ended with code {event['code']} on {event['node']}"
        assert found[4] in (wording.printable(said), wording.printable(f"{event['node']}: {said}"))
    else:
        assert found[4] and wording.printable(line) == found[4]


def test_the_corpus_is_large_and_holds_no_path_of_a_machine() -> None:
    assert len(RECORDED) >= 32
    for path in CORPUS.rglob("*"):
        if path.is_file() and path.suffix != ".py":
            text = path.read_text(errors="replace")
            assert path.stat().st_size < 20000
            assert not re.findall(r"(?<![\w.])/(?:work|home|root)/\S*", text), path


# (words of a log, its cause), from the sources of PyTorch, NCCL, the driver and others: no machine of the tests could cause them.
KNOWN_BY_THEIR_TEXT_ONLY = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.12 GiB is free.", "gpu-out-of-memory"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "gpu-out-of-memory"),
    ("torch.AcceleratorError: CUDA error: device kernel image is invalid", "gpu-not-supported"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 101 'invalid device ordinal'", "no-such-gpu"),
    ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.", "no-driver"),
    ("RuntimeError: CUDA driver error: out of memory", "gpu-out-of-memory"),
    ("RuntimeError: Triton Error [CUDA]: out of memory", "gpu-out-of-memory"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes", "gpu-out-of-memory"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.12 GiB is free. Process 1012345 has 78.10 GiB memory in use. Of the allocated memory 77 GiB is allocated by PyTorch", "gpu-out-of-memory"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclSystemError: System call failed.\nLast error:\nCall to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "locked-memory"),
    ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "no-driver"),
    ("AssertionError: libcuda.so cannot found!", "no-driver"),
    ("Failed to initialize NVML: Driver/library version mismatch", "driver-mismatch"),
    ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown", "driver-mismatch"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "no-fabric-manager"),
    ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method", "cuda-in-a-fork"),
    ("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-taken"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "gpu-taken"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclRemoteError: A call failed.\nLast error:\nNET/IB: Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 vendor err 129", "link-lost"),
    ("[rank0]:[F1126 ProcessGroupNCCL.cpp:1505] [PG ID 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.", "nccl-timeout"),
    ("RuntimeError: CUDA error: out of memory", "gpu-out-of-memory"),
    ("torch.AcceleratorError: HIP error: unspecified launch failure\nSearch for `hipErrorLaunchFailure' in the documentation", "illegal-gpu-access"),
    ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n\tpid: 71", "ray-worker-died"),
    ("ray.exceptions.ActorDiedError: The actor died because its node has died. Node Id: 3f", "ray-worker-died"),
    ("ActorError: The actor died unexpectedly in scene 3", "exception"),
    ("AssertionError: Error in memory profiling. Initial free memory 20.5 GiB, current free memory 21.5 GiB. This happens when", "gpu-in-use"),
    ("NotImplementedError: Operator aten.roll.default does not have a sharding strategy registered.", "no-sharding-strategy"),
    ("ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode. Please rerun", "device-mismatch"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error, NCCL version 2.29.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to bind NVLink SHARP (NVLS) Multicast memory of size 4194304 : CUDA error 2 'out of memory'.\nThis is usually caused by a system or configuration error", "nvls-failed"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error, NCCL version 2.27.5\nncclSystemError: System call failed.\nLast error:\nCall to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, curr state INIT, next state RTR", "nics-unreachable"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error, NCCL version 2.27.5\nncclSystemError: System call failed.\nLast error:\nCall to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_1:1", "nccl-error"),
    ("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "nccl-error"),
    ("RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)", "nccl-error"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/7/.metadata'", "checkpoint-incomplete"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/.metadata.json'", "file-missing"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/datasets/train.arrow'", "file-missing"),
    ("AssertionError: metadata is None; global metadata read failed: no such file", "checkpoint-incomplete"),
    ("  File \"/venv/torch/distributed/checkpoint/state_dict_loader.py\", line 250, in local_step\n    assert metadata is not None\n           ^^^^^^^^^^^^^^^^^^^^\nAssertionError", "checkpoint-incomplete"),
    ("RuntimeError: Could not load libtorchcodec. Likely causes:\n          1. FFmpeg is not properly installed", "torchcodec-not-loaded"),
    ("RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.", "worker-died"),
    ("OSError: AF_UNIX path length cannot exceed 107 bytes: '/scratch/a/ray/sockets/plasma_store'", "socket-path-too-long"),
    ("OSError: AF_UNIX path too long", "socket-path-too-long"),
    ("[rank0]:[E1218 20:27:21.426 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.", "nccl-timeout"),
    ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:2251, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", "nccl-error"),
    ("node1:12:34 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a1B2 to 9637892 bytes\nncclSystemError: System call failed.\nError while attaching to shared memory segment /dev/shm/nccl: No space left on device", "small-shm"),
    ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000", "gpu-shared"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:2251, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nError: network AWS Libfabric not found.", "nccl-network-missing"),
    ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "peer-gone"),
    ("[4021.1] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "gpu-fault"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-broken"),
    ("nvlink error: uncorrectable", "nvlink-broken"),
    ("terminate called without an active exception\nFatal Python error: Aborted", "aborted-at-exit"),
    ("[FATAL tini (6)] exec bash failed: No such file or directory", "no-bash"),
    ('docker: Error response from daemon: exec: "bash": executable file not found in $PATH: unknown.', "no-bash"),
    ('FATAL:   "bash": executable file not found in $PATH', "no-bash"),
    ("/etc/rc: line 1: exec: bash: not found", "no-bash"),
    ("/runs/1/spawn.sh: line 182: /work/src: Is a directory", "not-executable"),
    ("/runs/1/spawn.sh: line 182: ./profile: Permission denied", "not-executable"),
    ("bash: /venv/bin/accelerate: /build/venv/bin/python: bad interpreter: No such file or directory", "not-executable"),
    ("Error loading shared library libgomp.so.1: No such file or directory (needed by /venv/x.so)", "library-missing"),
    ("/etc/rc: exec: line 1: bash: not found", "no-bash"),  # busybox
    ("slurmstepd: error: execve(): bash: No such file or directory", "no-bash"),
    ('docker: Error response from daemon: exec: "docker-init": executable file not found in $PATH.', "no-docker-init"),
    ('docker: Error response from daemon: invalid mount config for type "bind": stat /home/ada/p: permission denied.', "engine-sees-less"),
    ('docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /tmp/p.', "engine-sees-less"),
    ("FATAL:   could not open image /images/x.sif: the image's architecture (amd64) could not run on the host's (arm64)", "image-of-another-cpu"),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink-broken"),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver", "driver-too-old"),
    ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "driver-too-old"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW", "driver-too-old"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "gpu-not-supported"),
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx", "no-driver"),
    ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!", "device-mismatch"),
    ("RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same", "device-mismatch"),
    ("RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same", "dtype-mismatch"),
    ("RuntimeError: Input type (float) and bias type (c10::BFloat16) should be the same", "dtype-mismatch"),
    ("RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::Half", "dtype-mismatch"),
    ("RuntimeError: expected scalar type Float but found Half", "dtype-mismatch"),
    ("RuntimeError: expected target dtype to be Long or Byte, but got Int", "dtype-mismatch"),
    ("RuntimeError: Found dtype Long but expected Float", "dtype-mismatch"),
    ("ValueError: RNN input dtype (torch.float32) does not match weight dtype (torch.bfloat16).", "dtype-mismatch"),
    ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", "torch-without-cuda"),
    ("RuntimeError: operator torchvision::nms does not exist", "import-failed"),
    ("ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules or CPU modules, but got device_ids [0, 1]", "device-mismatch"),
    ("IndexError: index out of range in self", "index-out-of-range"),
    ("OSError: [Errno 122] Disk quota exceeded", "quota"),
    ("RuntimeError: can't start new thread", "too-many-processes"),
    ("RuntimeError: Dataset not found. You can use download=True to download it", "dataset-missing"),
    ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "no-access"),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load this file", "hub-unreachable"),
    ("ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /code/ext.so)", "glibc-too-old"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.1. Some of the step tasks have been OOM Killed.", "host-out-of-memory"),
    ("ImportError: /venv/lib/python3.12/site-packages/fast_kernels.so: undefined symbol: _ZN3c104cuda9SetDeviceEa", "library-mismatch"),
    ("python: symbol lookup error: /opt/net/libnccl-net.so: undefined symbol: ncclOld", "library-mismatch"),
    ("fit.sh: line 3: cd: $'/data\\r': No such file or directory", "windows-lines"),
    ("fit.sh: line 2: $'\\r': command not found", "windows-lines"),
    ("fit.sh: line 4: syntax error near unexpected token `$'do\\r''", "windows-lines"),
    ("/usr/bin/env: ‘bash\\r’: No such file or directory", "windows-lines"),
    ("bash: ./fit.sh: /bin/bash^M: bad interpreter: No such file or directory", "windows-lines"),
    ("ImportError: FastAttention is on, but it cannot be used: the package fast_kernels seems to be not installed. See its page.", "module-missing"),
    ("ImportError: \nMyTokenizer requires the SomePiece library but it was not found in your environment.", "module-missing"),
    ("importlib.metadata.PackageNotFoundError: No package metadata was found for fast-kernels", "module-missing"),
    ("ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject", "import-failed"),
    ("AttributeError: module 'numpy' has no attribute 'float'.", "import-failed"),
    ("TypeError: Descriptors cannot be created directly.", "import-failed"),
    ("RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for embed.weight: copying a param with shape torch.Size([9, 4]) from checkpoint, the shape in current model is torch.Size([10, 4]).", "checkpoint-mismatch"),
    ("RuntimeError: size mismatch, m1: [8 x 32], m2: [64 x 10]", "shape-mismatch"),
    ("RuntimeError: Missing key in checkpoint state_dict: loader.rank_15.", "checkpoint-mismatch"),
    ("ValueError: Size mismatch between saved torch.Size([9, 4]) and current: torch.Size([10, 4]) for embed.weight", "checkpoint-mismatch"),
    ("RuntimeError: Attempting to deserialize object on CUDA device 2 but torch.cuda.device_count() is 1.", "checkpoint-of-a-gpu"),
    ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/datasets/a/b", "too-many-requests"),
    ("urllib.error.HTTPError: HTTP Error 403: rate limit exceeded", "too-many-requests"),
    ("ConnectionError: Couldn't reach 'a/b' on the Hub (LocalError)", "hub-unreachable"),
    ("huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/a/b: offline mode is enabled.", "hub-unreachable"),
    ("urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain>", "certificate"),
    ("wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])", "no-access"),
    ("wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.", "no-access"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'", "gpu-broken"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclSystemError: System call failed.\nLast error:\nsocketPollConnect: Connect to 10.0.0.2<45023> returned 113(No route to host)", "cannot-connect"),
    ("RuntimeError: HIP error: invalid device function", "gpu-not-supported"),
    ("torch.AcceleratorError: HIP error: invalid device ordinal", "no-such-gpu"),
    ("RuntimeError: HIP error: unspecified launch failure", "illegal-gpu-access"),
    ("Memory access fault by GPU node-4 (Agent handle: 0x26ff9f00) on address 0x7edbdee00000. Reason: Unknown.\nFatal Python error: Aborted", "illegal-gpu-access"),
    ("torch._inductor.exc.InductorError: PTXASError: PTXAS error: Internal error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_999' is not defined for option 'gpu-name'", "gpu-not-supported"),
    ("RuntimeError: No HIP GPUs are available", "no-driver"),
    ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", "no-driver"),
    ("lightning.fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!", "no-driver"),
    ("MisconfigurationException: `CUDAAccelerator` can not run on your system since the accelerator is not available.", "no-driver"),
    ("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", "no-driver"),
    ("ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32", "fsdp-units"),
    ("train.sh: line 20: 12345 Killed                  python train.py", "killed"),
    ("train.sh: line 20: 12345 Aborted                 (core dumped) python train.py", "aborted"),
    ("AssertionError: FSDP expects uniform original parameter dtype but got {torch.float32, torch.bfloat16}", "fsdp-units"),
    ("RuntimeError: mat2 must be a matrix, got 1-D tensor", "weights-are-sharded"),
    ("RuntimeError: size mismatch, got input (8), mat (8x896), vec (0)", "weights-are-sharded"),
    ("RuntimeError: Tensors must be CUDA and dense", "cpu-tensor-in-nccl"),
    ("RuntimeError: CUDA error: initialization error\nCUDA kernel errors might be asynchronously reported at some other API call", "cuda-in-a-fork"),
    ("RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:212] ss1.ss_family == ss2.ss_family. 2 vs 10", "cannot-connect"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error, NCCL version 2.20.5\nncclSystemError: System call failed.\nLast error:\nsocketStartConnect: Connect to 169.254.0.1<40815> failed : Software caused connection abort", "cannot-connect"),
    ("RuntimeError: Failed to unpickle serialized exception", "ray-exception-lost"),
    ("[2025-03-10 14:02:41,250 E 34412 34412] core_worker.cc:513: Failed to register worker to Raylet: IOError: [RayletClient] Unable to register worker with raylet. No such file or directory", "ray-not-started"),
    ("[2024-07-10 15:24:06,819 E 2474 2474] core_worker.cc:251: Failed to register worker 01000000ffffffffff to Raylet. IOError: [RayletClient] Unable to register worker", "ray-not-started"),
    ("logging.cc:108: Unhandled exception: N5boost10wrapexceptINS_6system12system_errorEEE. what(): thread: Resource temporarily unavailable [system:11]", "too-many-processes"),
    ("Floating point exception (core dumped)", "arithmetic-fault"),
    ("Fatal Python error: Floating-point exception", "arithmetic-fault"),  # since Python 3.13
    ("train.sh: line 20: 12345 Floating point exceptionpython train.py", "arithmetic-fault"),
    ("[node1:4021] Signal: Floating point exception (8)", "arithmetic-fault"),
    ("malloc(): unaligned tcache chunk detected", "heap-damaged"),
    ("corrupted size vs. prev_size", "heap-damaged"),
    ("malloc_consolidate(): unaligned fastbin chunk detected", "heap-damaged"),
    ("free(): invalid pointer", "heap-damaged"),
    ("double free or corruption (!prev)", "heap-damaged"),
    ("ops.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)", "cuda-toolkit-missing"),
    ("ops.CUDAMismatchException: >- Op Builder: Installed CUDA version 12.2 does not match the version torch was compiled with 11.7", "cuda-toolkit-missing"),
    ("RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)", "cuda-toolkit-missing"),
    ("ValueError: Some specified arguments are not used by the HfArgumentParser: ['--epoch', '3']", "wrong-arguments"),
    ("torch._inductor.exc.InductorError: RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: kernel_3 Required: 147456", "compile-failed"),
    ("BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)", "no-file-locks"),
    ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "too-many-processes"),
    ("RuntimeError: Pin memory thread exited unexpectedly", "pin-memory-thread-died"),
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 0", "gpu-out-of-memory"),
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.", "gpu-out-of-memory"),
    ("numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", "gpu-out-of-memory"),
    ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", "gpu-out-of-memory"),
    ("MemoryError: Out of memory allocating 8,192 bytes", "memory-error"),
    ("ValueError: Out of memory allocating 8,192 bytes for the replay buffer", "exception"),
    ("RuntimeError: Error compiling objects for extension", "extension-not-built"),
    ("RuntimeError: Error building extension 'fused_adam': [1/2] nvcc\nFAILED: a.o\n/tmp/a.ii: fatal error: cannot write: No space left on device", "disk-full"),
    ("RuntimeError: Error building extension 'fused_adam': [1/2] nvcc\nFAILED: a.o\na.cu:1: fatal error: b.h: No such file or directory", "extension-not-built"),
    ("RuntimeError: No available kernel.  Aborting execution.", "no-attention-kernel"),
    ("ValueError: No available kernel. Known: rbf, linear", "exception"),
    ("RuntimeError: Error building extension table of the archive", "exception"),
    ("AssertionError: No inf checks were recorded for this optimizer.", "grad-scaler"),
    ("RuntimeError: unscale_() has already been called on this optimizer since the last update().", "grad-scaler"),
    ("RuntimeError: step() has already been called since the last update().", "grad-scaler"),
    ("RuntimeError: unscale_() is being called after step().", "grad-scaler"),
    ("RuntimeError: step() has already been called on this cursor", "exception"),
    ("AssertionError: Attempted step 3 but the state is None", "assertion"),
    ("torch.AcceleratorError: CUDA error: operation would make the legacy stream depend on a capturing blocking stream", "cuda-graph-capture"),
    ("PermissionError: operation not permitted", "permission-denied"),
    ("ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: you need flash_attn package version to be greater or equal than 2.3.3. Detected version 2.1.", "import-failed"),
    ("ValueError: You requested gpu: 3 hours, but your project only has 2", "exception"),
    ("RuntimeError: No backend type associated with device type xpu", "exception"),
    ("httpx2.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://huggingface.co/a/b/resolve/main/config.json'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/429\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\nhuggingface_hub.errors.HfHubHTTPError: 429 Too Many Requests: you have reached your 'resolvers' rate limit.\nRetry after 244 seconds.", "too-many-requests"),
    ("httpx2.HTTPStatusError: Client error '403 Forbidden' for url 'https://huggingface.co/a/b/resolve/main/config.json'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/403\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\nhuggingface_hub.errors.HfHubHTTPError: 403 Forbidden: None.\nCannot access content at: https://huggingface.co/a/b/resolve/main/config.json.", "no-access"),
    ("httpx2.HTTPStatusError: Client error '401 Unauthorized' for url 'https://huggingface.co/a/b/resolve/main/config.json'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/401\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\nhuggingface_hub.errors.HfHubHTTPError: Client error '401 Unauthorized' for url 'https://huggingface.co/a/b/resolve/main/config.json'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/401\n\nInvalid credentials in Authorization header", "no-access"),
    ("httpx2.HTTPStatusError: Client error '404 Not Found' for url 'https://huggingface.co/a/b/resolve/main/config.json'\nFor more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/404\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\nhuggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.\n\nRepository Not Found for url: https://huggingface.co/a/b/resolve/main/config.json.\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\nOSError: a/b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'", "model-missing"),
    ("huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' and the maximum length is 96: './model'.", "model-missing"),
    ("OSError: Incorrect path_or_model_id: '/models/a'. Please provide either the path to a local folder or the repo_id of a model on the Hub.", "model-missing"),
    ("OSError: /models/a does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/a/tree/main' for available files.", "model-missing"),
    ("wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting", "no-network"),
    ("httpx2.ConnectTimeout: timed out", "no-network"),
    ("requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 6b)')", "no-network"),
    ("requests.exceptions.ReadTimeout: HTTPConnectionPool(host='10.0.0.1', port=8000): Read timed out. (read timeout=10)", "exception"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, invalid usage, NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nNET/IB : req 0/1 tag 0 peer 10.0.0.2<58683> collective mismatch error, local size 496640 remote size 65536", "ranks-disagree"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, internal error, NCCL version 2.27.5\nncclInternalError: Internal check failed.\nLast error:\nMessage truncated : received 1024 bytes instead of 256", "nccl-versions-differ"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 217 'peer access is not supported between these two devices'", "nccl-cuda-error"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.", "nccl-error"),
    ("torch.distributed.DistStoreError: wait timeout after 900000ms, keys: /none/torchelastic/role_info/0, /none/torchelastic/role_info/1", "rendezvous-timeout"),
    ("/tmp/a/main.c:5:10: fatal error: Python.h: No such file or directory\nsubprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/a/main.c', '-O3', '-shared', '-lcuda']' returned non-zero exit status 1.", "compiler-missing"),
    ("  File \"/usr/lib/python3.11/subprocess.py\", line 1863, in _execute_child\n    raise child_exception_type(errno_num, err_msg, err_filename)\nFileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", "cuda-toolkit-missing"),
    ("  File \"/usr/lib/python3.11/subprocess.py\", line 1863, in _execute_child\n    raise child_exception_type(errno_num, err_msg, err_filename)\nFileNotFoundError: [Errno 2] No such file or directory: '/tools/ffmpeg'", "file-missing"),
    ("  File \"/venv/lib/python3.11/site-packages/deepspeed/comm/comm.py\", line 677, in mpi_discovery\n    from mpi4py import MPI\nModuleNotFoundError: No module named 'mpi4py'", "no-launcher"),
    ("ModuleNotFoundError: No module named 'torch.nn'; 'torch' is not a package", "module-shadowed"),
    ("ImportError: cannot import name 'load_dataset' from 'datasets' (unknown location)", "module-shadowed"),
    ("ImportError: cannot import name 'load_dataset' from partially initialized module 'datasets' (most likely due to a circular import) (/home/me/datasets.py)", "module-shadowed"),
    ("ImportError: cannot import name 'x' from partially initialized module 'torch' (most likely due to a circular import) (/venv/lib/python3.11/site-packages/torch/__init__.py)", "import-failed"),
    ("ImportError: cannot import name 'Net' from partially initialized module 'net' (most likely due to a circular import) (/home/me/net.py)", "circular-import"),
    ("AttributeError: module 'random' has no attribute 'random' (consider renaming '/home/me/random.py' since it has the same name as the standard library module named 'random' and prevents importing that standard library module)", "module-shadowed"),
    ("AttributeError: module 'wandb' has no attribute 'init' (consider renaming '/home/me/wandb.py' if it has the same name as a library you intended to import)", "module-shadowed"),
    ("AttributeError: module 'net' has no attribute 'Net' (consider renaming '/home/me/net.py' if it has the same name as a library you intended to import)", "exception"),
    ("AttributeError: partially initialized module 'torch' from '/venv/lib/python3.13/site-packages/torch/__init__.py' has no attribute 'x' (most likely due to a circular import)", "exception"),
    ("ModuleNotFoundError: No module named '__main__.net'; '__main__' is not a package", "module-missing"),
    ("ModuleNotFoundError: No module named 'typing.io'; 'typing' is not a package", "versions-differ"),
    ("ModuleNotFoundError: No module named 'torchvision.transforms.functional_tensor'", "versions-differ"),
    ("ModuleNotFoundError: No module named 'torch._six'", "versions-differ"),
    ("ModuleNotFoundError: No module named 'pkg_resources'", "versions-differ"),
    ("ModuleNotFoundError: No module named 'datasets.cifar'", "module-missing"),
    ("ValueError: The checkpoint you are trying to load has model type `qwen2_5_vl` but Transformers does not recognize this architecture.", "versions-differ"),
    ("RuntimeError: Dataset scripts are no longer supported, but found superb.py", "versions-differ"),
    ("ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now require users to upgrade torch to at least v2.6", "versions-differ"),
    ("Exception: data did not match any variant of untagged enum ModelWrapper at line 1251012 column 3", "versions-differ"),
    ("TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'", "versions-differ"),
    ("TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'", "versions-differ"),
    ("TypeError: DPOTrainer.__init__() got an unexpected keyword argument 'processing_class'", "versions-differ"),
    ("TypeError: Trainer.__init__() got an unexpected keyword argument 'rates'", "exception"),
    ("TypeError: Seq2SeqTrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'", "versions-differ"),
    ("ImportError: This modeling file requires the following packages that were not found in your environment: flash_attn. Run `pip install flash_attn`", "module-missing"),
    ("ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`: Please run `pip install transformers[torch]` or `pip install 'accelerate>=1.1.0'`", "module-missing"),
    ("  File \"/usr/lib/python3.11/multiprocessing/popen_fork.py\", line 66, in _launch\n    self.pid = os.fork()\n               ^^^^^^^^^\nOSError: [Errno 12] Cannot allocate memory", "host-out-of-memory"),
    ("OSError: [Errno 12] Cannot allocate memory", "memory-error"),
    ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.1) where the task was running was 503.2GB / 512GB (0.95)", "host-out-of-memory"),
    ("RuntimeError: unable to mmap 29764 bytes from file </torch_10182_3020184674_63991>: Cannot allocate memory (12)", "too-many-maps"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/home/me/.triton/cache/cff6/_rms_norm.ttir.tmp.pid_15735_304289' -> '/home/me/.triton/cache/cff6/_rms_norm.ttir'", "compile-cache-broken"),
    ("OSError: [Errno 16] Device or resource busy: '/shared/.triton/cache/ABC/tmp.pid_1_x'", "compile-cache-broken"),
    ("ImportError: /home/me/.triton/cache/abcd/__triton_launcher.cpython-312-x86_64-linux-gnu.so: cannot stat shared object: Stale file handle", "compile-cache-broken"),
    ("OSError: [Errno 116] Stale file handle: '/nfs/cache/indices.arrow'", "stale-file"),
    ("  File \"/venv/torch/utils/data/_utils/collate.py\", line 274, in collate_tensor_fn\n    out = elem.new(storage).resize_(len(batch), *list(elem.size()))\nRuntimeError: Trying to resize storage that is not resizable", "shape-mismatch"),
    ("RuntimeError: Trying to resize storage that is not resizable", "exception"),
    ("ValueError: No samples found in dataset; perhaps you have fewer shards than workers.\nTurn off using empty_check=False in the WebDataset constructor.", "too-few-shards"),
    ("ValueError: you need to add an explicit nodesplitter to your input pipeline for multi-node training", "too-few-shards"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.", "gpu-not-supported"),
    ("ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')", "gpu-not-supported"),
    ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "gpu-not-supported"),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", "index-out-of-range"),
    ("torch.AcceleratorError: CUDA error: unknown error", "cuda-unknown-error"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 999: unknown error", "cuda-unknown-error"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 805: MPS client failed to connect to the MPS control daemon or the MPS server", "mps-not-reached"),
    ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "not-a-number"),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", "not-a-number"),
    ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", "not-a-number"),
    ("ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB).", "gpu-out-of-memory"),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "gpu-out-of-memory"),
    ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 7).", "library-mismatch"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "library-mismatch"),
    ("RuntimeError: Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}", "library-missing"),
    ("RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc1.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([10, 25]).", "weights-are-sharded"),
    ("RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc1.weight: copying a param with shape torch.Size([7, 7]) from checkpoint, the shape in current model is torch.Size([0]).", "weights-are-sharded"),
    ("RuntimeError: 'weight' must be 2-D", "weights-are-sharded"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 719 'unspecified launch failure'", "illegal-gpu-access"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet initialized'", "no-fabric-manager"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'", "nccl-cuda-error"),
    ("RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for conv.activation_post_process.min_val: copying a param with shape torch.Size([64]) from checkpoint, the shape in current model is torch.Size([0]).", "checkpoint-mismatch"),
    ("RuntimeError: unable to mmap 20000000 bytes from file <model.bin>: Cannot allocate memory (12)", "memory-error"),
    ("subprocess.CalledProcessError: Command '['gcc', 'src/main.c', '-o', 'main']' returned non-zero exit status 1.", "exception"),
    ("ImportError: Loading a BitNet quantized model requires accelerate (`pip install accelerate`)", "module-missing"),
    ("ImportError: Loading an torchao quantized model requires torchao library (`pip install torchao`)", "module-missing"),
    ("RuntimeError: The fused kernel requires CUDA. See the docs (pip install fused[cuda])", "exception"),
    ("torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (gpu7, 29511). The IPv4 network addresses of (gpu7, 29511) cannot be retrieved (gai error: -2 - Name or service not known).", "name-unknown"),
    ("torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (10.0.0.7, 29511). The client socket has timed out after 9000ms while trying to connect to (10.0.0.7, 29511).", "rendezvous-timeout"),
    ("jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Stopping coordination service as cluster registration failed. Set a longer timeout", "rendezvous-timeout"),
    ("jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:", "rendezvous-timeout"),
    ("jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: my_own_sync::0.", "exception"),
    ("ValueError: DEADLINE_EXCEEDED: the cluster registration failed", "exception"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, internal error, NCCL version 2.27.5\nncclInternalError: Internal check failed.\nLast error:\nNET/OFI Opening a domain of the fabric failed: No such device", "nccl-network-failed"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:94, internal error, NCCL version 2.27.5\nncclInternalError: Internal check failed.\nLast error:\nNET/OFI Request 0x71 completed with error. RC: 5.", "nccl-error"),
    ("RuntimeError: FSDP needs a non-CPU accelerator device, but no accelerator device is detected.", "no-driver"),
    ("FileExistsError: [Errno 17] File exists: '/000003_barrier'", "shm-left"),
    ("FileExistsError: [Errno 17] File exists: '/data/000003_barrier'", "exception"),
    ("ValueError: Reused local directory: ['/scratch/a'] vs ['/scratch/a']. Provide a different one.", "shm-left"),
    ("requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.example.org/a", "server-failed"),
    ("httpx.HTTPStatusError: Server error '504 Gateway Timeout' for url 'https://hub.example.org/a'", "server-failed"),
    ("httpx2.RemoteProtocolError: peer closed connection", "server-failed"),
    ("aiohttp.client_exceptions.ClientPayloadError: Response payload is not completed", "server-failed"),
    ("fsspec.exceptions.FSTimeoutError", "server-failed"),
    ("PermissionError: The provided token has expired.", "credentials"),
    ("PermissionError: Forbidden", "credentials"),
    ("botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation: The provided token has expired.", "credentials"),
    ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", "credentials"),
    ("botocore.exceptions.UnauthorizedSSOTokenError: The SSO session associated with this profile has expired or is otherwise invalid.", "credentials"),
    ("OSError: When reading information for key 'a.parquet' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation: No response body.", "credentials"),
    ("google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.", "credentials"),
    ("OSError: [Errno 107] Transport endpoint is not connected: '/bucket/a.tar'", "file-system-failed"),
    ("OSError: [Errno 107] Transport endpoint is not connected", "exception"),
    ("BrokenPipeError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/a.tar'", "file-system-failed"),
    ("OSError: [Errno 5] Input/output error", "file-system-failed"),
    ("OSError: [Errno 37] No locks available", "no-file-locks"),
    ("SyntaxError: broken PNG file (chunk b'\\x00\\x00\\x00\\x00')", "data-damaged"),
    ("PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f1c>", "data-damaged"),
    ("OSError: image file is truncated (12 bytes not processed)", "data-damaged"),
    ("pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer.", "data-damaged"),
    ("OSError: Unable to synchronously open file (truncated file: eof = 1052672, sblock->base_addr = 0, stored_eof = 2097152)", "data-damaged"),
    ("RuntimeError: could not unlink the shared memory file /torch_182_3881_77 : No such file or directory (2)", "shm-removed"),
    ("RuntimeError: unable to open shared memory object </torch_182_3881_77> in read-write mode: No such file or directory (2)", "shm-removed"),
    ("RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination", "driver-mismatch"),
    ("RuntimeError: Numpy is not available", "import-failed"),
    ("ImportError: /venv/lib/python3.12/site-packages/nvidia/cusparse/lib/libcusparse.so.12: symbol __nvJitLinkOld, version libnvJitLink.so.12 not defined in file libnvJitLink.so.12 with link time reference", "library-mismatch"),
    ("ImportError: /venv/lib/fast.so: symbol fast_old, version FAST_1 not defined in file libfast.so.1 with link time reference", "library-mismatch"),
    ("RuntimeError: jaxlib/cuda/versions_helpers.cc:81: operation cusparseGetProperty(MAJOR_VERSION, &major) failed: The cuSPARSE library was not found.", "library-mismatch"),
    ("RuntimeError: Unable to initialize backend 'cuda': INTERNAL: failed call to cuDeviceGet: CUDA_ERROR_INVALID_DEVICE: invalid device ordinal", "no-such-gpu"),
    ("jax.errors.JaxRuntimeError: INTERNAL: Failed to create NCCL communicator: Last NCCL warning(error) log entry 'Bootstrap : no socket interface found'.", "no-such-interface"),
    ("CuError: Call to cuMemCreate(&handle, size, &properties, 0) failed. (Cu failure: operation not permitted)", "no-imex-channel"),
    ("RuntimeError: [CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle, size, &properties, 0)", "no-imex-channel"),
    ("NotImplementedError: FileSystem does not appear to support flock; use SoftFileLock instead", "no-file-locks"),
    ("  File \"/venv/lib/python3.12/site-packages/shards/lock.py\", line 43, in hold\n    fcntl.flock(fd, fcntl.LOCK_EX)\nOSError: [Errno 38] Function not implemented", "no-file-locks"),
    ("RuntimeError: Using hostfile at hosts but host=10.0.0.2 was not reachable via ssh. If you are running with a single node please remove hosts.", "ranks-by-ssh"),
    ("  File \"/venv/lib/python3.12/site-packages/nixl/_api.py\", line 301, in create_backend\n    self.agent.createBackend(backend, params)\nnixl._bindings.nixlBackendError: NIXL_ERR_BACKEND", "ucx-failed"),
    ("EnvironmentNameNotFound: Could not find conda environment: fit\nYou can list all discoverable environments with `conda info --envs`.", "environment-not-activated"),
    ("ValueError: 500 Server Errors were counted", "exception"),
    ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nAssertionError: Invalid match!", "compile-failed"),
    ("torch._inductor.exc.InductorError: AssertionError: ", "compile-failed"),
    ("ray.exceptions.OutOfDiskError: Local disk is full", "disk-full"),
    ("AttributeError: Can't pickle local object 'Loader.__init__.<locals>.<lambda>'", "not-picklable"),
    ("TypeError: cannot pickle '_io.TextIOWrapper' object", "not-picklable"),
    ("_pickle.PicklingError: Can't pickle <function <lambda> at 0x31a2>: attribute lookup <lambda> on __main__ failed", "not-picklable"),
    ("ValueError: Image features and image tokens do not match: tokens: 64, features: 4608", "shape-mismatch"),
    ("ValueError: Mismatch in `image` token count between text and `input_ids`. Got ids=[629] and text=[665].", "shape-mismatch"),
    ("ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True'", "shape-mismatch"),
    ("AssertionError: {'id': 249, 'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 0, 'shape': (0,)}", "weights-are-sharded"),
    ("ConnectionError: The vLLM server can't be reached at 0.0.0.0:8000 after 120.0 seconds. Make sure the server is running", "server-failed"),
    ("RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "gpu-out-of-memory"),
    ("ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (3664). Try increasing", "gpu-out-of-memory"),
    ("ValueError: To serve at least one request with the models's max seq len (8192), (1.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.52 GiB).", "gpu-out-of-memory"),
    ("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", "nccl-usage"),
    ("ValueError: Tensors must be contiguous", "not-contiguous"),
    ("RuntimeError: output tensor must have the same type as input tensor", "dtype-mismatch"),
    ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "dtype-mismatch"),
    ("Exception: No dot product attention support for the provided inputs!", "no-attention-kernel"),
    ("ValueError: No dot product attention backend is available for the provided inputs. Please run with NVTE_DEBUG=1", "no-attention-kernel"),
    ("RuntimeError: /te/fused_attn.cu:330 in function operator(): cuDNN Error: [cudnn_frontend] Error: No execution plans support the graph.Can't retrieve", "no-attention-kernel"),
    ("RuntimeError: \n            Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: [{'a.weight', 'b.weight'}].", "tied-weights"),
    ("ValueError: optimizer got an empty parameter list", "nothing-to-train"),
    ("ValueError: Target modules q_proj,v_proj not found in the base model. Please check the target modules and try again.", "lora-targets"),
    ("Exception: Could not find the transformer layer class to wrap in the model.", "fsdp-units"),
    ("ValueError: Default process group has not been initialized, please make sure to call init_process_group.", "no-process-group"),
    ("ValueError: Please make sure to properly initialize your accelerator via `accelerator = Accelerator()` before using any functionality", "no-process-group"),
    ("ValueError: The arg 'group_size' (8) must not exceed the world size (2)", "parallel-sizes"),
    ("    *self._dim_group_infos[mesh_dim][:2]\n     ~~~~~~~~~~~~~~~~~~~~~^^^^^^^^^^\nIndexError: list index out of range", "parallel-sizes"),
    ("RuntimeError: Mesh should not be bigger than default world size 8, but found 16 ranks!", "parallel-sizes"),
    ("RuntimeError: world_size (12) is not divisible by 8", "parallel-sizes"),
    ("AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(8) * cp(1) * tp(2) * pp(1) != WORLD_SIZE(8)", "parallel-sizes"),
    ("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 1 * 85 * 3", "batch-sizes"),
    ("AssertionError: global batch size (128) is not divisible by micro batch size (4) times data parallel size (6)", "batch-sizes"),
    ("AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.", "batch-sizes"),
    ("ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.", "ray-too-few-gpus"),
    ("ValueError: Total available GPUs 8.0 is less than total desired GPUs 16", "ray-too-few-gpus"),
    ("jaxlib._jax.XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details).", "nccl-error"),
    ("datasets.table.CastError: Couldn't cast\nname: string\nto\n{'label': Value('string')}\nbecause column names don't match", "data-columns"),
    ("ValueError: The features can't be aligned because the key a of features has unexpected type - Value('string') (expected Value('int64'))", "data-columns"),
    ("KeyError: 'Trying to restore optimizer state but checkpoint contains only the model. This is probably due to'", "checkpoint-mismatch"),
    ("megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded (torch.Size([64])) and expected ((128,)) tensor", "checkpoint-mismatch"),
    ("TypeError: RobertaModel.forward() got an unexpected keyword argument 'num_items_in_batch'", "versions-differ"),
    ("AttributeError: 'DynamicCache' object has no attribute 'get_max_length'. Did you mean: 'get_seq_length'?", "versions-differ"),
    ("torch._dynamo.exc.FailOnRecompileLimitHit: Hard failure due to fullgraph=True", "recompiled-too-often"),
    ("wandb.errors.errors.CommError: failed to upsert bucket: returned error 403 Forbidden: {'errors':[{'message':'permission denied'}]}", "no-access"),
    ("wandb.errors.CommError: It appears that you do not have permission to access the requested resource. Please reach out", "no-access"),
    ("wandb.errors.errors.CommError: failed to upsert bucket: returned error 404 Not Found: {'errors':[{'message':'entity me not found during upsertBucket'}]}", "no-access"),
    ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options.\nPlease file an issue with the following so that we can make `weights_only=True` compatible: WeightsUnpickler error: Unsupported operand 118", "checkpoint-is-text"),
    ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded.\nWeightsUnpickler error: Unsupported operand 149", "checkpoint-untrusted"),
    ("_pickle.UnpicklingError: invalid load key, 'v'.", "checkpoint-is-text"),
    ("_pickle.UnpicklingError: invalid load key, '<'.", "checkpoint-is-text"),
    ("_pickle.UnpicklingError: invalid load key, '\\x00'.", "checkpoint-damaged"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "checkpoint-is-text"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: header too large", "checkpoint-is-text"),
    ("RuntimeError: unexpected EOF, expected 7491165 more bytes. The file might be corrupted.", "checkpoint-damaged"),
    ("RuntimeError: storage has wrong size: expected 4 got 256", "checkpoint-damaged"),
    ("ModuleNotFoundError: No module named 'encodings'", "python-incomplete"),
    ("RuntimeError: Tensor on device cuda:0 is not on the expected device meta!", "device-mismatch"),
    ("RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)", "rendezvous-timeout"),
    ("ImportError: /usr/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block", "library-loaded-late"),
    ("ImportError: /venv/lib/libcusparseLt.so.0: failed to map segment from shared object", "library-not-mapped"),
    ("ImportError: /venv/torch/lib/libtorch_cuda.so: file too short", "library-damaged"),
    ("ImportError: libc10.so: cannot open shared object file: No such file or directory", "library-missing"),
    ("ModuleNotFoundError: No module named 'mmcv._ext'", "extension-not-built"),
    ("ModuleNotFoundError: No module named 'mmcv._extra'", "module-missing"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'output/tmp-checkpoint-50' -> 'output/checkpoint-50'", "file-of-another-rank"),
    ("OSError: [Errno 39] Directory not empty: 'output/tmp-checkpoint-50' -> 'output/checkpoint-50'", "file-of-another-rank"),
    ("FileNotFoundError: [Errno 2] No such file or directory", "exception"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "gpu-out-of-memory"),
    ('RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830, please report a bug to PyTorch.', "gpu-out-of-memory"),
    ("RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned by training_step.", "unused-parameters"),
    ("ValueError: FlatParameter requires uniform dtype but got torch.float32 and torch.bfloat16", "fsdp-units"),
    ("deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 16. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported.", "checkpoint-mismatch"),
    ("AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2", "no-sync-with-zero"),
    ("TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'", "versions-differ"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb)`", "gpu-library-failed"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "gpu-library-failed"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa, opb)`", "library-mismatch"),
    ("RuntimeError: \n        CUDA Setup failed despite GPU being available. Please run the following command to get more information:", "library-mismatch"),
    ("RuntimeError: Expected is_sm80 || is_sm90 to be true, but got false.", "no-attention-kernel"),
    ("RuntimeError: FlashAttention backward for head dim > 192 requires A100/A800 or H100/H800", "no-attention-kernel"),
    ("ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0", "no-bfloat16"),
    ("AssertionError: FP8 execution requires 2D input matrices with height divisible by 8 and width divisible by 16, but got tensor with dims=[3, 1024]", "fp8-shapes"),
    ("datasets.utils.info_utils.NonMatchingSplitsSizesError: [{'expected': SplitInfo(name='train', num_bytes=9)}]", "dataset-differs"),
    ("MIOpen Error: /src/sqlite_db.cpp:220: open memvfs: unable to open database file\nRuntimeError: miopenStatusUnknownError", "miopen-cache"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name"), KNOWN_BY_THEIR_TEXT_ONLY, ids=[text[:50] for text, _ in KNOWN_BY_THEIR_TEXT_ONLY])
def test_patterns_known_by_their_text_only(text: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(str(run_directory(tmp_path / "run", {0: (f"Traceback (most recent call last):\n{text}\n", "1 node1 0\n")})))
    said = capsys.readouterr().out
    assert first_cause(said) == name, said


def test_a_run_whose_terminal_was_closed_is_told_how_to_outlive_that(tmp_path: Path) -> None:
    run, cause = history.Run("7", str(tmp_path), "x", "1x1", 0.0, local=True, state="CANCELLED"), findings.CAUSE_NOTED["CANCELLED"]
    fixes = [run_state.name_canceller(cause, replace(run, why=f"by {who}")).fix for who in ("SIGHUP", "Ctrl-C")]
    assert fixes == ["its terminal was closed, or ssh broke: start it again: {again}; in tmux, or with nohup before it", "start it again: {again}"]


# For each of these causes, lines and exceptions that look like its words, and are of something else.
INNOCENT = {
    "gpu-out-of-memory": ["ValueError: the log is larger than the maximum number of tokens", "RuntimeError: CUDA Error: out of range at pool.cpp:7", "ValueError: OOM when allocating tensors for table 3"],
    "nccl-usage": ["RuntimeError: NCCL error reports are off: invalid usage of --quiet", "RuntimeError: RCCL error: invalid usage", "ValueError: NCCL error: invalid usage in cell 3"],
    "cudnn-not-started": ["RuntimeError: DNN library is not found in /models", "ValueError: the DNN library initialisation file is empty", "KeyError: 'DNN library'"],
    "not-contiguous": ["ValueError: Tensors must be on one device", "ValueError: blocks must be contiguous", "ValueError: tensors must be contiguous in time"],
    "dtype-mismatch": ["RuntimeError: output tensor must have the same size as input tensor", "RuntimeError: FlashAttention only supports head dimensions up to 256", "ValueError: the output must have the same type as the input"],
    "no-attention-kernel": ["ValueError: No dot product for the provided inputs", "ValueError: no execution plans support the graph of week 3", "RuntimeError: cuDNN is off; no plans"],
    "tied-weights": ["RuntimeError: Some tensors share names", "ValueError: ranks share memory, this will lead to a race", "RuntimeError: files lead to duplicate memory on disk"],
    "aborted": ["F1 0.83 net.cc:7] fine", "2026-05-13 18:10:02.100: F1 score in eval.cc:22] 0.83", "F 32 of 64 in net.cc:7", "the grade is F net.py:3] low"],
    "compile-failed": ["ValueError: BackendCompilerFailed was counted", "torch._dynamo.exc.TorchRuntimeError: Failed running call_function", "RuntimeError: Inductor is off"],
    "disk-full": ["ValueError: the local disk is full of old runs", "ray.exceptions.ObjectStoreFullError: it is full", "RuntimeError: out of disk quota notices"],
    "not-picklable": ["ValueError: cannot pickle cucumbers", "AttributeError: Can't get attribute 'Net' on <module '__main__'>", "RuntimeError: pickling took 3 s"],
    "shape-mismatch": [
        "ValueError: too many dimensions", "ValueError: Unable to create tensors for the mask", "ValueError: activate padding",
        "ValueError: image features do not match the table", "ValueError: Mismatch in image count", "ValueError: token count between the files",
    ],
    "weights-are-sharded": ["AssertionError: {'id': 3, 'status': 'late'}", "AssertionError: status NOT_AVAILABLE", "KeyError: {'id': 249}"],
    "server-failed": ["ConnectionError: the server can't be reached", "ValueError: vLLM server at port 3", "RuntimeError: no server"],
    "graph-failed": ["ValueError: Graph execution error: 3", "ValueError: Graph execution error:\nno node", "RuntimeError: the graph failed\n\t [[7]]"],
    "nothing-to-train": ["ValueError: got an empty parameter list for the sweep", "ValueError: optimizer got an invalid learning rate", "ValueError: an empty list of optimizers"],
    "lora-targets": ["ValueError: Target modules are empty", "ValueError: target modules of the base model differ", "ValueError: Target users not found in the base table"],
    "fsdp-units": ["ValueError: Could not find the layer class in the registry", "ValueError: Could not find the transformer weights", "ValueError: no transformer layer class"],
    "no-process-group": ["ValueError: Default group of users has not been initialized", "ValueError: process group 7 has not been initialized", "ValueError: properly initialize your accelerator card"],
    "parallel-sizes": ["ValueError: group_size must not exceed the world size", "ValueError: the size of the world (3) is not divisible by 2", "    row = groups[index]\nIndexError: list index out of range"],
    "batch-sizes": ["AssertionError: train_batch_size is not equal to 8", "AssertionError: global batch size is not set", "AssertionError: only support equal chunks of text"],
    "ray-too-few-gpus": ["ValueError: required GPUs: 8", "ValueError: the number of available GPUs is odd", "ValueError: Total available GPUs is unknown"],
    "nccl-error": ["jaxlib._jax.XlaRuntimeError: INTERNAL: operation failed: unhandled cuda error", "ValueError: NCCL operation 3 of the plan failed", "jaxlib._jax.XlaRuntimeError: INTERNAL: NCCL operation took long"],
    "data-columns": ["ValueError: Couldn't cast 'x' to int", "ValueError: All the files must have the same length", "ValueError: The features can't be empty"],
    "checkpoint-mismatch": ["KeyError: 'Trying to restore a session'", "ValueError: checkpoint contains only the config", "ValueError: Global shape of the mask is wrong"],
    "versions-differ": ["TypeError: forward() got an unexpected keyword argument 'mask'", "AttributeError: 'MyDynamicCache' object has no attribute 'size'", "AttributeError: 'Cache' object has no attribute 'get_max_length'"],
    "recompiled-too-often": ["W0117 torch._dynamo hit config.recompile_limit (8)", "ValueError: recompile limit exceeded", "RuntimeError: Hard failure of disk 3"],
    "value-refused": ["ValidationError: 1 validation error for Record\nname\n  field required", "ValueError: 2 validation errors for epoch 3", "pydantic.errors.PydanticUserError: no class"],
    "no-access": ["wandb.errors.CommError: it took too long", "ValueError: permission denied by the policy network", "wandb.errors.UsageError: entity is no word"],
    "driver-mismatch": ["Error 803 of 900 samples skipped", "the system has a display driver", "lr 0.1, error 803: loss"],
    "no-imex-channel": ["cuMemCreate(&handle, size) ok", "operation not permitted: chmod", "IMEX channels: 0"],
    "no-such-gpu": ["invalid device ordinal 8 is skipped", "CUDA_ERROR_INVALID_DEVICE is caught below", "INVALID_DEVICE: none"],
    "shm-removed": ["could not unlink /tmp/torch_1: No such file or directory", "shared memory file /torch_1 unlinked", "unable to open shared memory, using files"],
    "no-file-locks": ["flock is not supported here, going on", "fcntl.flock(fd, fcntl.LOCK_EX)", "FileSystem does not appear to support xattr"],
    "quota": ["quota of samples exceeded", "Disk quota: 80 % used", "triton/runtime/cache.py: 122 kernels"],
    "port-in-use": ["address of the cache already known", "torch/distributed/elastic/agent: port 29500", "TCPStore listens at 29500"],
    "rendezvous-timeout": ["connect to (127.0.1.1, 29500) ok", "node1 has the address 127.0.1.1", "rendezvous at (127.0.1.1, 29500)"],
    "nccl-network-failed": ["NET/OFI RC: -38, ERROR: Function not implemented, trying tcp", "Function not implemented", "single_node_vni is not set"],
    "environment-not-activated": ["Run 'conda init' once to use conda", "conda activate fit", "# conda environments:"],
    "program-missing": ["torchrun: starting 2 workers", "python: command line 3 read", "accelerate not found, using torch alone"],
    "glibc-too-old": ["libstdc++.so.6: version `GLIBCXX_3.4.30' found", "GLIBC_2.34 is here", "looking in /.singularity.d/libs"],
    "library-missing": ["libcudart.so.12: loaded", "cannot open shared objects of libcudart", "libcudnn.so.9 is not needed"],
    "library-mismatch": ["torch/lib/libtorch_cuda.so: 88 undefined symbols", "The cuSPARSE library was found", "symbol table, version 2"],
    "import-failed": ["Numpy is available", "NumPy is not available, lists are used", "numpy 2 is fine"],
    "ranks-by-ssh": ["node2: Killed", "pdsh@node1: node2: ssh exited with exit code 255", "Host key verification failed.", "ssh: connect to host git.example.org port 22: Connection refused", "pdsh is not used"],
    "mpi-not-started": ["Component: munge", "PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168", "pmix_init ok"],
    "ucx-failed": ["UCX  ERROR   connect(fd=114, dest_addr=10.0.0.2:45031) failed: Connection refused", "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND", "UCX  WARN  network device 'mlx5_9:1' is not available, please use one or more of: 'eth0'(tcp)", "UCX  INFO  ep_cfg[4]: tag(tcp/docker0)", "UCX  ERROR rate: 0"],
}  # fmt: skip
INNOCENT_TO_SRUN = {
    "step-not-started": ("srun: error: node1: task 0: Exited with exit code 1", "srun: Step created for StepId=7.1", "sbatch: Invalid generic resource names are ignored"),
    "mount-point-missing": ("INFO:    destination /data is already in the mount point list", "WARNING: /data doesn't exist in container", "mounting /data"),
}  # fmt: skip


@pytest.mark.parametrize("name", INNOCENT)
def test_lines_that_look_like_a_cause_are_neither_the_cause_nor_a_hint(name: str, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in INNOCENT[name])
    ends = [(text, "3 node1 0\n"), (text + traceback("KeyError: 'labels'", "batch['labels']"), "1 node1 0\n")]
    ends += [(f"Traceback (most recent call last):\n{line}\n", "1 node1 0\n") for line in INNOCENT[name]]
    found = [report.why(str(run_directory(tmp_path / f"run{number}", {0: end}))) for number, end in enumerate(ends)]
    assert [each.cause for each in found[:2]] == ["exit-code", "exception"]
    assert not [str(each) for each in found if f"({name})" in str(each)]


@pytest.mark.parametrize("name", INNOCENT_TO_SRUN)
def test_lines_of_srun_and_of_nodes_that_look_like_a_cause_are_not_it(name: str, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in INNOCENT_TO_SRUN[name])
    run = run_directory(tmp_path / "run", {}, text, {"node1": text})
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    assert f"({name})" not in str(report.why(str(run)))


def in_package(file: str, source: str, line: str) -> str:
    """A traceback whose last frame is a package's."""
    return f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n  File "/venv/lib/python3.12/site-packages/{file}", line 71, in f\n    {source}\n{line}\n'


BUSY = "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use"
NO_QUOTA = "OSError: [Errno 122] Disk quota exceeded"
OF_FABRIC = (
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error, NCCL version 2.27.5\nncclSystemError: System call failed.\n"
    "Last error:\nNET/OFI Couldn't open a fabric access domain. RC: {}"
)


@pytest.mark.parametrize(
    ("text", "cause", "said"),
    [
        (in_package("triton/runtime/cache.py", "with open(temp_path, mode) as f:\n         ^^^^^^^^^^^^^^^^^^^^^", NO_QUOTA), "quota", "TRITON_CACHE_DIR"),
        (in_package("torch/serialization.py", "self.file.write(data)", NO_QUOTA), "quota", "remove old checkpoints"),
        (in_package("torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", "self._store = TCPStore(", BUSY), "port-in-use", "take torchrun out of the command"),
        (in_package("torch/distributed/rendezvous.py", "return TCPStore(", BUSY), "port-in-use", "leave MASTER_PORT to kit"),
        (in_package("torch/x.py", "dist.barrier()", OF_FABRIC.format("-38, ERROR: Function not implemented")), "nccl-network-failed", "network=single_node_vni"),
        (in_package("torch/x.py", "dist.barrier()", OF_FABRIC.format("-19, ERROR: No such device")), "nccl-network-failed", "/dev/infiniband"),
        (in_package("torch/x.py", "init()", "RuntimeError: Error 803: system has unsupported display driver / cuda driver combination"), "driver-mismatch", "/usr/local/cuda/compat"),
        (in_package("torch/x.py", "init()", "RuntimeError: NVML: Driver/library version mismatch"), "driver-mismatch", "the machine must be restarted; tell the administrators"),
        (in_package("torch/__init__.py", "from torch._C import *", "ImportError: /venv/torch/lib/libtorch_cuda.so: undefined symbol: ncclOld"), "library-mismatch", "nvidia-nccl-cu12 beside"),
        (in_package("fast/__init__.py", "import fast_cuda", "ImportError: /venv/fast_cuda.so: undefined symbol: _ZN3c105ErrorOld"), "library-mismatch", "--no-build-isolation"),
        (in_package("vtk/__init__.py", "import x", "ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /.singularity.d/libs/libGLX.so.0)"), "glibc-too-old", "an image of a newer distribution"),
        (in_package("vtk/__init__.py", "import x", "ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /venv/vtk.so)"), "glibc-too-old", "in which it was built"),
        (in_package("torch/__init__.py", "import x", "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /venv/x.so)"), "glibc-too-old", "conda install"),
        (in_package("flash/__init__.py", "import x", "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory"), "library-missing", "for another CUDA than torch's"),
        (in_package("vtk/__init__.py", "import x", "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"), "library-missing", "install it in the image"),
    ],
)  # fmt: skip
def test_the_fix_is_of_what_the_library_did_and_of_whose_it_is(text: str, cause: str, said: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == cause and said in found.fix, str(found)


DASHES = "-" * 74 + "\n"
AFTER_MPI_INIT = "*** An error occurred in MPI_Init\n*** on a NULL communicator\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and MPI will try to terminate your MPI job as well)\n[node1:71] Local abort before MPI_INIT completed\n"
OF_SSH = f"{DASHES}ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n" + "".join(
    f"* {reason}\n  or another\n  or a third.\n" for reason in ("not finding the required libraries", "lack of authority", "the inability to write", "compilation of the orted")
) + f"* an inability to create a connection back to mpirun due to a\n  lack of common network interfaces. Please check network connectivity (including firewalls\n  and network routing requirements).\n{DASHES}"  # fmt: skip
OF_PMIX = (
    f"{DASHES}A requested component was not found, or was unable to be opened.\n\nHost:      node1\nFramework: psec\nComponent: munge\n{DASHES}{DASHES}It looks like pmix_init failed for some reason.\n\n"
    f"  pmix_psec_base_open failed\n  --> Returned value -46 instead of PMIX_SUCCESS\n{DASHES}[node1:71] PMIX ERROR: NOT-FOUND in file client.c at line 234\n"
)
OF_PMI = f'{DASHES}The application appears to have been direct launched using "srun",\nbut OMPI was not built with SLURM\'s PMI support and therefore cannot\nexecute. There are several options.\n\nPlease configure as appropriate and try again.\n{DASHES}'
OF_UCX = "[1.2] [node1:71:0]            sock.c:325  UCX  ERROR   connect(fd=114, dest_addr=172.17.0.1:45031) failed: Connection refused\n"


@pytest.mark.parametrize(
    ("text", "cause", "line"),
    [
        (f"Host key verification failed.\n{OF_SSH}", "ranks-by-ssh", "Host key verification failed."),
        (f"ssh: connect to host node2 port 22: Connection refused\n{OF_SSH}", "ranks-by-ssh", "ssh: connect to host node2 port 22: Connection refused"),
        ("node2: Host key verification failed.\npdsh@node1: node2: ssh exited with exit code 255\n", "ranks-by-ssh", "node2: Host key verification failed."),
        (
            "node2: ssh: connect to host node2 port 22: Connection refused\nnode3: ready\npdsh@node1: node2: ssh exited with exit code 255\n",
            "ranks-by-ssh",
            "node2: ssh: connect to host node2 port 22: Connection refused",
        ),
        (OF_SSH, "ranks-by-ssh", "* an inability to create a connection back to mpirun due to a"),
        (OF_PMIX + AFTER_MPI_INIT, "mpi-not-started", "Component: munge"),
        (OF_PMI + AFTER_MPI_INIT, "mpi-not-started", "but OMPI was not built with SLURM's PMI support and therefore cannot"),
        (OF_UCX + "[node1:71] pml_ucx.c:424  Error: ucp_ep_create(proc=9) failed: Destination is unreachable\n" + AFTER_MPI_INIT, "ucx-failed", OF_UCX[:-1]),
        (OF_UCX + "going on\n" * 20 + AFTER_MPI_INIT, "exit-code", "ended with code 1 on node1"),
    ],
    ids=["ssh refuses", "no sshd", "pdsh", "pdsh of several", "no word of ssh", "no munge", "no PMI", "UCX", "long before"],
)
def test_of_the_messages_of_mpi_the_line_with_the_reason_is_shown(text: str, cause: str, line: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert (found.cause, found.line) == (cause, line), str(found)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("CondaError: Run 'conda init' before 'conda activate'\n" + "Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n    import torch\nModuleNotFoundError: No module named 'torch'\n", 0),
        ("CondaError: Run 'conda init' before 'conda activate'\nfit.sh: line 9: torchrun: command not found\n", 0),
        ("fit.sh: line 9: torchrun: command not found\n", 0),
    ],
)  # fmt: skip
def test_what_is_missing_since_no_environment_was_activated_is_not_the_cause(text: str, line: int, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.line == text.splitlines()[line] and "activate" in found.title, str(found)


NO_CONDA = "CondaError: Run 'conda init' before 'conda activate'\n"


@pytest.mark.parametrize(
    ("said", "code", "cause"),
    [
        (NO_CONDA + "loading\n", 139, "segfault"),
        (NO_CONDA + "loading\n", 137, "killed"),
        (NO_CONDA + "free(): invalid pointer\n", 134, "heap-damaged"),
        (NO_CONDA + "loading\n", 3, "exit-code"),
        ("node2: Killed\npdsh@node1: node2: ssh exited with exit code 255\n", 255, "exit-code"),
        (NO_CONDA + "write: No space left on device\nOSError: [Errno 28] No space left on device\n", 1, "disk-full"),
        ("W dso_loader.cc:64] Could not load dynamic library 'libcublas.so.11'; dlerror: libcublas.so.11: cannot open shared object file: No such file or directory\n", 3, "exit-code"),
        ("W dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory\n", 3, "exit-code"),
        ("a.py:13: UserWarning: Failed to load image Python extension: '/lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /venv/image.so)'\n", 3, "exit-code"),
        ("a.py:13: UserWarning: Failed to load image Python extension: '/venv/image.so: undefined symbol: _ZN3c10'\n", 3, "exit-code"),
    ],
)  # fmt: skip
def test_what_a_program_goes_on_without_is_not_the_cause_of_its_end(said: str, code: int, cause: str, tmp_path: Path) -> None:
    assert report.why(str(run_directory(tmp_path / "run", {0: (f"{said}step 1\n", f"{code} node1 0\n")}))).cause == cause


@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        ("srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification", "step-not-started", "compare what the job has"),
        ("srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.", "step-not-started", "unset SLURM_MEM_PER_NODE"),
        ("srun: error: Unable to create step for job 7: Job/step already completing or completed", "step-not-started", "sinfo -R"),
        ("srun: error:  mpi/pmix_v5: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx library", "step-not-started", "SLURM_MPI_TYPE=pmi2"),
        ("FATAL:   container creation failed: failed to resolve session directory /var/apptainer/mnt/session: lstat /var/apptainer: no such file or directory", "container-not-started", "exclude=node1"),
        ("FATAL:   container creation failed: mount /s/data->/data error: destination /data doesn't exist in container", "mount-point-missing", "RUN mkdir -p /data"),
        ("FATAL:   container creation failed: while setting up the session", "container-not-started", "check mounts, workdir and image"),
    ],
)  # fmt: skip
def test_the_fix_for_a_step_that_did_not_start_is_of_the_reason(said: str, cause: str, fix: str, tmp_path: Path) -> None:
    after = (
        "srun: error: MPI: Cannot create context for mpi/pmix\nsrun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n"
        if "PMIx" in said
        else ""
    )
    text = f"{said}\n{after}"
    run = run_directory(tmp_path / "run", {}, *(["", {"node1": text}] if said.startswith("FATAL") else [text]))
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    found = report.why(str(run))
    assert (found.cause, found.line) == (cause, said) and fix in found.fix, str(found)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("The client socket has timed out after 60000ms while trying to connect to (127.0.1.1, 29500).", "rendezvous-timeout"),
        ("The client socket has failed to connect to any network address of (node9, 29500). The IPv4 network addresses of (node9, 29500) cannot be retrieved (gai error: -2 - Name or service not known).", "name-unknown"),
        ("The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).", "rank-missing"),
        ("The client socket has timed out after 60000ms while trying to connect to (localhost, 29500).", "rank-missing"),
    ],
)  # fmt: skip
def test_a_rank_that_waits_where_the_others_cannot_find_it_is_not_missing(error: str, cause: str, tmp_path: Path) -> None:
    for nodes, expected in ((2, cause), (1, "rank-missing")):
        ranks = {1: (traceback(f"torch.distributed.DistNetworkError: {error}"), "1 node2 0\n"), 0: ("", "")}
        run = run_directory(tmp_path / f"run{nodes}", ranks, nprocs=1)
        record = json.loads((run / "run.json").read_text())
        record["plan"]["layout"]["nodes"] = nodes
        (run / "run.json").write_text(json.dumps(record))
        event_lines.add(run / "log/7", "node1", "rank_ended", 10**9 + 5, node="node1", rank=0, local_rank=0, code=143, stopped=True)
        event_lines.add(run / "log/7", "batch", "ends", code=1)
        assert report.why(str(run)).cause == expected, str(report.why(str(run)))


ODD_LINES = {
    "ranks-by-ssh": ["node2: ssh: ", "ssh: ", "ssh: x\n", "ssh: " * 45 + "\n", "Permission denied (publickey" * 9, "Host key verification failed"],
    "mpi-not-started": ["Component: ", "Component: x\n", "not built with SLURM's PMI support" * 5 + "\n"],
    "ucx-failed": ["UCX  ERROR ", "UCX  ERROR   connect(x\n", "UCX  WARN  network device " * 9 + "\n", "UCX WARN network device x not available" * 9],
    "extension-not-built": ["FAILED: x\n", "FAILED: x error\n", "x\n", "error "],
    "compiler-missing": ["fatal error: ", "fatal error: x\n", "ld: " * 99 + "\n"],
    "index-out-of-range": [
        "thread: [0,0,0] Assertion `",
        "thread: [0,0,0] Assertion `x` failed.\n",
        "thread: [0,0,0] Assertion `" * 16 + "\n",
        "` failed " * 40 + "\n",
    ],
    "no-attention-kernel": [
        "UserWarning: ",
        "UserWarning: Triggered internally at ",
        "UserWarning: Triggered internally at sdp_util\n",
        "UserWarning: " * 30 + "Triggered internally at " * 16 + "\n",
        "DEBUG:DotProductAttention:Disabling " * 20 + "\n",
        "[DEBUG    | DotProductAttention]: Disabling " * 20 + "\n",
    ],
    "cudnn-not-started": ["Could not create cudnn handle " * 20 + "\n", "Loaded runtime CuDNN librar\n"],
    "data-columns": ["because column names don't match\n", "because column names " * 20 + "\n"],
    "shape-mismatch": ["ValueError: too many dimensions '\n", "ValueError: " * 20 + "\n"],
}


@pytest.mark.parametrize("cause", [cause for cause in findings.CAUSES if cause.reason], ids=lambda cause: cause.name)
def test_the_reason_of_a_cause_is_soon_found_in_any_log(cause: Cause) -> None:
    for piece in ODD_LINES[cause.name]:
        text = "FAILED: x\n" + piece * (findings.SEARCHED // len(piece))
        begin = time.process_time()
        re.findall(cause.reason, text, re.MULTILINE)
        assert time.process_time() - begin < 5, piece


@pytest.mark.parametrize(
    ("name", "said", "not_said"),
    [
        ("gpu-too-small", "PYTORCH_CUDA_ALLOC_CONF", "XLA_"),
        ("gpu-too-small-for-jax", "--env XLA_PYTHON_CLIENT_MEM_FRACTION=0.95", "PYTORCH_"),
        ("jax-beside-torch", "--env XLA_PYTHON_CLIENT_PREALLOCATE=false", "PYTORCH_"),
        ("gpu-too-small-for-cupy", "cupy.get_default_memory_pool().free_all_blocks()", "PYTORCH_"),
    ],
)
def test_the_fix_for_memory_of_a_gpu_is_of_the_library_that_ran_out_of_it(name: str, said: str, not_said: str, tmp_path: Path) -> None:
    found = report.why(str(copy_of(name, tmp_path)))
    assert said in found.fix and not_said not in found.fix
    assert ("(gpu-in-use), by " in str(found)) == (name == "jax-beside-torch")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model-not-on-the-gpu", "move it before: model.to(device)"),
        ("lightning-names-another-gpu", "Trainer(devices=...)"),
        ("flash-attention-missing", "attn_implementation='sdpa'"),
    ],
)
def test_the_fix_is_of_the_variant_of_a_cause(name: str, said: str, tmp_path: Path) -> None:
    assert said in report.why(str(copy_of(name, tmp_path))).fix


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("extension-with-an-error", '/tmp/home/.cache/torch_extensions/py312_cu130/e2/cuda.cu(4): error: identifier "oops" is undefined'),
        ("extension-for-an-old-gpu", "nvcc fatal   : Unsupported gpu architecture 'compute_35'"),
        ("attention-in-single-precision", "UserWarning: Expected query, key and value to all be of dtype: {Half, BFloat16}."),
    ],
)
def test_the_line_that_says_the_reason_is_shown_where_the_exception_does_not_say_it(name: str, line: str, tmp_path: Path) -> None:
    assert line in report.why(str(copy_of(name, tmp_path))).line


GCC = "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/a/main.c', '-O3', '-lcuda']' returned non-zero exit status 1."


@pytest.mark.parametrize(
    ("before", "raised", "cause"),
    [
        ("/tmp/a/main.c:5:10: fatal error: Python.h: No such file or directory", GCC, "compiler-missing"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", GCC, "compiler-missing"),
        (
            "TensorCompare.cu:112: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed",
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
            "index-out-of-range",
        ),
        *(
            (
                f"{mark}Disabling FlashAttention 2 as it does not support MLA.",
                "ValueError: No dot product attention backend is available for the provided inputs.",
                "no-attention-kernel",
            )
            for mark in ("DEBUG:DotProductAttention:", "[DEBUG    | DotProductAttention]: ")
        ),
    ],
)
def test_the_line_before_an_exception_that_says_why_is_shown(before: str, raised: str, cause: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (f"{before}\n{traceback(raised)}", "1 node1 0\n")})))
    assert (found.cause, found.line) == (cause, before)


def test_an_assertion_that_is_no_kernels_is_not_the_reason_of_an_index_out_of_range(tmp_path: Path) -> None:
    raised = "IndexError: index out of range in self"
    run = run_directory(tmp_path / "run", {0: (f"Assertion `x > 0` failed, continuing\n{traceback(raised)}", "1 node1 0\n")})
    assert report.why(str(run)).line == raised


def test_the_fix_for_the_argument_of_an_older_launcher_is_another_launcher(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {0: ("train.py: error: unrecognized arguments: --local-rank=0\n", "2 node1 0\n")})
    assert "os.environ['LOCAL_RANK']" in report.why(str(run)).fix


def test_a_reason_that_an_earlier_failure_had_or_that_is_missing_is_not_shown(tmp_path: Path) -> None:
    def build(error: str) -> str:
        return f"FAILED: [code=1] a.o\nc++ -Werror -c a.cpp\na.cpp:3: warning: unused\n{error}a.cpp:9: error: expected ';'\nninja: build stopped\n"

    failed = traceback("RuntimeError: Error building extension 'e'")
    for number, (before, shown) in enumerate({"": "RuntimeError: Error building extension 'e'", build(""): "a.cpp:9: error: expected ';'"}.items()):
        assert report.why(str(run_directory(tmp_path / f"run{number}", {0: (before + failed, "1 node1 0\n")}))).line == shown
    later = build("first.h:1: fatal error: other.h: No such file\n") + failed + "without it\n" + build("a.cpp:4: error: 'x' was not declared\n") + failed
    assert report.why(str(run_directory(tmp_path / "later", {0: (later, "1 node1 0\n")}))).line == "a.cpp:4: error: 'x' was not declared"


IN_RAY = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
    ray.get(worker.step.remote(batch))
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Worker.step()\x1b[39m (pid=7, ip=10.0.0.1)
  File "/home/me/worker.py", line 4, in step
    return self.model(batch)
           ^^^^^^^^^^^^^^^^^
{}
"""
ANEW_IN_RAY = """KeyError: 'labels'

The above exception was the direct cause of the following exception:

\x1b[36mray::Worker.step()\x1b[39m (pid=7, ip=10.0.0.1)
  File "/home/me/worker.py", line 6, in step
    raise ValueError("a bad batch") from error
ValueError: a bad batch"""


@pytest.mark.parametrize(
    ("raised", "cause", "place"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "gpu-out-of-memory", "4"),
        ("KeyError: 'labels'", "exception", "4"),
        (ANEW_IN_RAY, "exception", "6"),
    ],
)
def test_what_a_task_of_ray_raised_is_the_cause_with_its_place_in_the_task(raised: str, cause: str, place: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (IN_RAY.format(raised), "1 node1 0\n")})))
    line = raised.split("\n")[-1]
    assert found.cause == cause and f"\ncause: {line}, at /home/me/worker.py:{place}" in str(found) and f"  | {line}\n" in str(found)


def test_the_place_of_an_exception_in_compiled_python_is_the_line_that_called_it(tmp_path: Path) -> None:
    found = report.why(str(copy_of("gpu-too-small-for-cupy", tmp_path)))
    assert ", at train.py:6 (in cupy/cuda/memory.pyx:1560): " in found.title


def test_the_line_that_shows_an_error_of_nccl_is_its_last_error(tmp_path: Path) -> None:
    said = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error\nncclSystemError: System call failed.\nLast error:\n"
    last = "Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1"
    found = report.why(str(run_directory(tmp_path / "run", {0: (traceback(f"{said}{last}"), "1 node1 0\n")})))
    assert found.cause == "nccl-error" and f"  | {last}\n" in str(found)


HYDRA_ENDS = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Could not override 'trainer.epoch'.\nTo append to your config use +trainer.epoch=3\nKey 'epoch' is not in struct\n{HYDRA_ENDS}", 1),
        (f"In 'config': Could not find 'model/large'\n\nAvailable options in 'model':\n\tsmall\n{HYDRA_ENDS}", 1),
        ("Usage: train.py [OPTIONS]\n╭─ Error ─────────────────╮\n│ No such option: --epoch │\n╰─────────────────────────╯\n", 2),
        ("ERROR: Could not consume arg: --epoch\nUsage: train.py <flags>\n", 2),
        ("╭─ Unrecognized options ───────────╮\n│ Unrecognized options: --epoch    │\n╰──────────────────────────────────╯\n", 2),
    ],
    ids=["Hydra", "Hydra without a file", "Typer", "Fire", "tyro"],
)
def test_arguments_that_a_parser_refuses_without_an_exception_are_the_cause(text: str, code: int, tmp_path: Path) -> None:
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, f"{code} node1 0\n")}))).cause == "wrong-arguments"


@pytest.mark.parametrize(
    ("last", "code", "cause"),
    [
        ("", 137, "killed"),
        ("", 3, "exit-code"),
        ("[rank0]:[E1119 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n", 134, "nccl-timeout"),
    ],
)
def test_what_nccl_reports_as_information_is_no_cause(last: str, code: int, cause: str, tmp_path: Path) -> None:
    lacks = "node1:4021:4021 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory"
    text = f"{lacks}\nnode1:4021:4021 [0] NCCL INFO dlsym: libnccl-net.so: undefined symbol: ncclNet_v9\n{last}"
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, f"{code} node1 0\n")}))).cause == cause


@pytest.mark.parametrize(("line", "cause"), [("object '/x/libjemalloc.so.2' from LD_PRELOAD cannot be preloaded", "exit-code"), ("x.so", "library-missing")])
def test_what_bash_and_the_loader_go_on_without_is_no_cause(line: str, cause: str, tmp_path: Path) -> None:
    text = f"bash: /root/.bashrc: Permission denied\nERROR: ld.so: {line} (cannot open shared object file): ignored.\n"
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, "3 node1 0\n")}))).cause == cause


TIMED_OUT = "[rank0]:[E1119 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"


@pytest.mark.parametrize(
    ("case", "fix"),
    [
        ("fsdp", "look at rank 0, at the places that the flight recorder names: "),
        ("p2p", "look at ranks 0-1, at the places that the flight recorder names: "),
        ("skip", "look at rank 3, at the places that the flight recorder names: "),
        ("slow_gpu", "next time, call kit hang while it hangs: "),
    ],
)
def test_after_a_time_out_of_nccl_the_fix_points_to_the_ranks_that_the_flight_recorder_names(case: str, fix: str, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {2: (TIMED_OUT, "134 node2 0\n")})
    for dump in (Path(__file__).with_name("flight") / case).iterdir():
        shutil.copy(dump, run / "log/7")
    found = report.why(str(run))
    assert found.cause == "nccl-timeout" and found.fix.startswith(fix) and "  flight recorder: rank" in str(found)


def test_a_program_that_crashes_as_it_may_start_no_more_threads_has_too_many(tmp_path: Path) -> None:
    text = "BLAS init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable\n"
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, "139 node1 0\n")}))).cause == "too-many-processes"


@pytest.mark.parametrize("said", ["timeout waiting for task launch, started 3 of 4 tasks", "MPI: Cannot create context for mpi/pmix"])
def test_tasks_that_slurm_does_not_start_are_the_cause(said: str, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {}, f"srun: error: {said}\n")
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    assert report.why(str(run)).cause == "step-not-started"


def test_the_first_failure_is_the_one_that_does_not_speak_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {0: (PEER, "1 node1 0\n"), 3: ("ValueError: a bug of its own\n", "1 node2 1\n"), 1: (PEER, "1 node1 1\n")}
    show(str(run_directory(tmp_path / "run", late)))
    said = capsys.readouterr().out
    assert "  first: rank 3 on node2 (local rank 1): exit code 1; 2 more ranks recorded a failure\n" in said
    assert "cause: ValueError: a bug of its own (exception)\n" in said
    assert "hints, from messages in the logs:\n  another rank ended first, and this one noticed (peer-gone), by run/log/7/rank0.out:1\n" in said


def test_files_are_named_as_they_open_from_the_folder_in_which_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_directory(tmp_path / "mine/runs/a", {0: (traceback("KeyError: 'rates'"), "1 node1 0")})
    (tmp_path / "other").mkdir()
    for folder, name in (("mine", "runs/a/log/7/rank0.out"), ("mine/runs/a", "log/7/rank0.out"), ("other", f"{run}/log/7/rank0.out")):
        monkeypatch.chdir(tmp_path / folder)
        found = report.why(str(run))
        assert re.findall(r"^  (?:shown by|the end of its traceback,) (.*):4:$", str(found), re.MULTILINE) == [name, name]
        assert found.shown_by == "log/7/rank0.out:4"  # of which programs know the run directory


def test_slurms_word_beats_what_ranks_say_as_they_are_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    show(str(run_directory(tmp_path / "run", {0: ("OSError: [Errno 28] No space left on device\n", "1 node1 0\n")}, batch)))
    said = capsys.readouterr().out
    assert first_cause(said) == "time-limit" and "it ended TIMEOUT\n" in said and "(disk-full)" in said


def test_of_two_messages_in_one_log_that_weigh_the_same_the_later_one_is_the_cause(tmp_path: Path) -> None:
    said = {"image-missing": "Unable to find image 'x' locally\n", "container-not-started": "docker: Error response from daemon: no\n"}
    for earlier, later in (list(said), list(said)[::-1]):
        run = run_directory(tmp_path / later, {}, said[earlier] + said[later])
        event_lines.add(run / "log/7", "batch", "ends", code=1)
        assert report.why(str(run)).cause == later


@pytest.mark.parametrize(
    ("said", "cause", "shown"),
    [
        (["nvidia-container-cli: initialization error: nvml error: driver not loaded", "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1"], "no-driver", 0),
        (["nvidia-container-cli: mount error: mount operation failed: permission denied", "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1"], "gpu-hook-failed", 0),
        (["nvidia-container-cli: initialization error: open failed: /proc/self/ns/mnt: permission denied", "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1"], "gpu-hook-failed", 0),
        (["enroot-nsenter: failed to create user namespace: Permission denied"], "no-user-namespaces", 0),
        (["[INFO] Querying registry for permission grant", "[ERROR] URL https://registry.example.org/v2/a/manifests/1 returned error code: 401 Unauthorized"], "image-refused", 1),
        (["[INFO] Fetching image manifest list", "[ERROR] URL https://registry-1.docker.io/v2/a/manifests/1 returned error code: 429 Too Many Requests"], "image-refused", 1),
        (["[ERROR] URL https://registry.example.org/v2/a/manifests/1 returned error code: 404 Not Found"], "image-missing", 0),
        (["[WARN] Kernel module nvidia_uvm is not loaded.", "Parallel unsquashfs: Using 64 processors", "12 inodes (34 blocks) to write", "", "create_inode: failed to create hardlink"], "container-not-started", 4),
        (["mkdir: cannot create directory ‘/run/user/1000’: Permission denied"], "permission-denied", 0),
        (["[INFO] Extracting image layers...", "write_file: failed to create file /x, because No space left on device", "failed"], "disk-full", 1),
        (["[INFO] Extracting", "", "[ERROR] Failed to refresh the dynamic linker cache", "[ERROR] /etc/87-slurm.sh exited with return code 1"], "container-not-started", 2),
    ],
)  # fmt: skip
def test_where_pyxis_starts_no_container_the_cause_is_what_enroot_said(said: list[str], cause: str, shown: int, tmp_path: Path) -> None:
    lines = ["container start failed with error code: 1", "printing enroot log file:", *(f"    {line}" for line in said), "couldn't start container"]
    text = "".join(f"slurmstepd: error: pyxis: {line}\n" for line in lines)
    run = run_directory(tmp_path / "run", {}, "srun: error: node1: task 0: Exited with exit code 1\nsrun: error: node2: task 1: Killed\n", {"node1": text})
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    found = report.why(str(run))
    assert (found.cause, found.line) == (cause, f"slurmstepd: error: pyxis:     {said[shown]}")


@pytest.mark.parametrize(
    ("said", "cause", "shown"),
    [
        ("nvidia-container-cli: initialization error: open failed: /proc/self/ns/mnt: permission denied\n[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n", "gpu-hook-failed", 0),
        ("mkdir: no\n[ERROR] /etc/enroot/hooks.d/10-home.sh exited with return code 1\n[ERROR] Failed\n", "container-not-started", 2),
        ("docker: Error response from daemon: error running prestart hook #0: Using requested mode 'cdi'\ninvoking the NVIDIA Container Runtime Hook directly is not supported.\n", "gpu-hook-failed", 1),
        ("ERROR  : Failed invoking the NEWUSER namespace runtime: Invalid argument\nABORT  : Retval = 255\n", "no-user-namespaces", 0),
    ],
    ids=["a hook of Enroot's", "another of Enroot's errors", "Docker's last line", "an old Singularity"],
)  # fmt: skip
def test_the_cause_of_a_container_that_did_not_start_is_the_line_with_the_reason(said: str, cause: str, shown: int, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {}, "srun: error: node1: task 0: Exited with exit code 1\n", {"node1": said})
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    found = report.why(str(run))
    assert (found.cause, found.line) == (cause, said.splitlines()[shown])


@pytest.mark.parametrize(
    "said",
    [
        ['error: a container with name "mine" does not exist', "couldn't start container"],
        ["child 71 failed with error code: 1", "failed to import docker image", "printing enroot log file:", "couldn't start container", "if the image has"],
    ],
    ids=["no container", "no log of Enroot"],
)
def test_where_pyxis_starts_no_container_its_own_reason_is_shown_and_not_that_it_did_not(said: list[str], tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {}, "".join(f"slurmstepd: error: pyxis: {line}\n" for line in said))
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    found = report.why(str(run))
    assert (found.cause, found.line) == ("container-not-started", f"slurmstepd: error: pyxis: {said[len(said) // 3]}")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("squashfuse_ll exited: fusermount: fuse device not found, try 'modprobe fuse' first", "image-not-mounted"),
        ("squashfuse_ll exited: Something went wrong", "image-damaged"),
    ],
)
def test_an_image_is_not_damaged_where_the_node_has_no_fuse(said: str, cause: str, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {}, f"FATAL:   container creation failed: image driver mount failure: {said}\n")
    event_lines.add(run / "log/7", "batch", "ends", code=1)
    assert report.why(str(run)).cause == cause


@pytest.mark.parametrize(
    "line",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/cache/7f_doc_idx.npy'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/cache/7f-GPTDataset-train-shuffle_index.npy'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/home/me/text/cache-7fa3_00001_of_00008.arrow'",
        "FileNotFoundError: [Errno 2] Failed to open local file '/home/me/datasets/json/a/0.0.0/7fa3/json-train.arrow'. Detail: [errno 2] No such file",
    ],
)
def test_of_a_file_that_another_rank_makes_the_fix_is_to_wait_and_not_to_mount_it(line: str, tmp_path: Path) -> None:
    begin = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in <module>\n    load(path)\n'
    text = f'{begin}  File "pyarrow/error.pxi", line 91, in pyarrow.lib.check_status\n    raise FileNotFoundError(message)\n{line}\n'
    found = report.why(str(run_directory(tmp_path / "run", {2: (text, "1 node2 0\n")})))
    assert found.cause == "file-of-another-rank" and "barrier()" in found.fix, str(found)


@pytest.mark.parametrize(
    ("warning", "cause", "line"),
    [
        ("socketPollConnect: Connect to 10.0.0.4<4711> returned 113(No route to host)", "cannot-connect", "returned 113(No route to host)"),
        ("NET/Socket : peer 10.0.0.4<4711> message truncated : receiving 8 bytes instead of 4.", "ranks-disagree", "receiving 8 bytes instead of 4."),
        ("NET/OFI Opening a domain of the fabric failed: No such device", "nccl-network-failed", "failed: No such device"),
        ("NET/OFI libfabric.so.1: cannot open shared object file", "nccl-error", "(run with NCCL_DEBUG=INFO for details)"),
        ("Call to posix_fallocate failed : out of patience", "nccl-error", "(run with NCCL_DEBUG=INFO for details)"),
    ],
)
def test_the_cause_is_what_nccl_warned_of_where_the_exception_does_not_say(warning: str, cause: str, line: str, tmp_path: Path) -> None:
    error = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
    text = f"node1:71:71 [0] misc/socket.cc:1 NCCL WARN {warning}\n{traceback(error)}"
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == cause and found.line.endswith(line) and f"cause: {error[:60]}" in str(found), str(found)


@pytest.mark.parametrize(
    ("warning", "cause"),
    [
        ("The NVIDIA driver on your system is too old (found version 11040).", "driver-too-old"),
        ("Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW", "driver-too-old"),
        ("Found no NVIDIA driver on your system.", "no-driver"),
    ],
)
def test_the_cause_is_what_torch_warned_of_where_it_counts_no_gpus(warning: str, cause: str, tmp_path: Path) -> None:
    text = f"/venv/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: {warning}\n  return torch._C._cuda_getDeviceCount() > 0\n"
    text += traceback("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == cause, str(found)


def test_the_signal_that_ended_a_worker_says_more_than_that_it_ended(tmp_path: Path) -> None:
    """torch raises both where the main process waits for a batch."""
    error = traceback("RuntimeError: DataLoader worker (pid 71) is killed by signal: Segmentation fault. ", "return self._poll(timeout)")
    text = f"{error}\nThe above exception was the direct cause of the following exception:\n\n"
    text += traceback("RuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly")
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == "segfault" and "Segmentation fault" in found.line, str(found)
    text = text.replace("RuntimeError: DataLoader worker (pid 71) is killed by signal: Segmentation fault. ", "_queue.Empty")
    found = report.why(str(run_directory(tmp_path / "other", {0: (text, "1 node1 0\n")})))
    assert found.cause == "worker-died" and found.line.endswith("exited unexpectedly"), str(found)


@pytest.mark.parametrize(
    "line",
    [
        "Error while creating shared memory segment /dev/shm/nccl-ab (size 9637888), error: No space left on device (28)",
        "node1:12:34 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a1B2 to 9637892 bytes",
    ],
)
def test_where_nccl_finds_the_shared_memory_full_the_fix_is_not_about_the_data_loader(line: str, tmp_path: Path) -> None:
    error = "torch.distributed.DistBackendError: NCCL error in: x.cpp:3356, unhandled system error\nncclSystemError: System call failed.\nLast error:"
    found = report.why(str(run_directory(tmp_path / "run", {0: (traceback(f"{error}\n{line}"), "1 node1 0\n")})))
    assert found.cause == "small-shm" and "NCCL_SHM_DISABLE=1" in found.fix and "num_workers" not in found.fix, str(found)


def test_what_nccl_warned_of_long_before_is_not_the_cause(tmp_path: Path) -> None:
    warned = "node1:71:71 [0] nccl_ofi_net_init:171 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"
    error = traceback("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")
    for steps, cause in ((9, "nccl-network-failed"), (10, "nccl-error")):
        run = run_directory(tmp_path / f"run{steps}", {0: (warned + "step\n" * steps + error, "1 node1 0\n")})
        assert report.why(str(run)).cause == cause


@pytest.mark.parametrize(
    "line",
    [
        "HTTP Error 503 thrown while requesting GET https://a: 503 Server Error: Service Unavailable for url: https://a. Retrying in 1s [Retry 1/5].",
        "Got disconnected from remote data host. Retrying in 5sec [1/20]: aiohttp.client_exceptions.ServerDisconnectedError",
        "data cache: off, since TypeError: cannot pickle '_thread.lock' object",
        "frozen: ValueError: optimizer got an empty parameter list",
        "wandb: WARNING CommError: entity me not found",
        "sandbox: test 3: Command '['python', '3.py']' died with <Signals.SIGKILL: 9>, reward 0",
    ],
)
def test_what_the_program_says_of_what_it_got_over_is_not_the_cause_of_an_abort(line: str, tmp_path: Path) -> None:
    assert report.why(str(run_directory(tmp_path / "run", {0: (f"{line}\nstep 4\n", "134 node1 0\n")}))).cause == "aborted"


def test_nccl_names_a_network_that_it_does_not_find_where_the_plugin_has_failed(tmp_path: Path) -> None:
    warned = "node1:71:71 [0] nccl_ofi_net_init:204 NCCL WARN NET/OFI Disabling shared memory failed: Protocol not available\n"
    missing = traceback("torch.distributed.DistBackendError: NCCL error in: x.cpp:268, invalid usage\nLast error:\nError: network AWS Libfabric not found.")
    for name, said in (("nccl-network-failed", warned), ("nccl-network-missing", "")):
        assert report.why(str(run_directory(tmp_path / name, {0: (said + missing, "1 node1 0\n")}))).cause == name


@pytest.mark.parametrize(("name", "cause"), [("node-a.local", "name-unknown"), ("node-b.local", "rendezvous-timeout")])
def test_the_ranks_do_not_find_each_other_where_the_name_of_the_first_node_is_not_known(name: str, cause: str, tmp_path: Path) -> None:
    warned = "".join(
        f"[W402 socket.cpp:759] [c10d] The IPv{number} network addresses of ({name}, 47301) cannot be retrieved (gai error: -2 - Name or service not known).\n"
        for number in (6, 4)
    )
    error = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node-a.local, 47301)."
    found = report.why(str(run_directory(tmp_path / "run", {0: (warned + traceback(error), "1 node1 0\n")})))
    assert found.cause == cause and (name in found.title) == (cause == "name-unknown"), str(found)


def test_a_process_that_jax_ends_since_another_is_gone_is_not_at_fault(tmp_path: Path) -> None:
    ended = "F0926 17:26:32.07 71 client.h:77] Terminating process because the JAX distributed service detected fatal errors. Another task died\n"
    found = report.why(str(run_directory(tmp_path / "run", {0: (ended, "134 node1 0\n"), 1: (traceback("KeyError: 'rates'"), "1 node1 1\n")})))
    assert (found.rank, found.cause) == (1, "exception"), str(found)
    assert report.why(str(run_directory(tmp_path / "alone", {0: (ended, "134 node1 0\n")}))).cause == "peer-gone"


def test_a_file_without_permission_is_named_without_its_quotes(tmp_path: Path) -> None:
    for number, quoted in enumerate(("'/run/a'", "‘/run/a’", "/run/a")):
        run = run_directory(tmp_path / f"run{number}", {}, "", {"node1": f"mkdir: cannot create directory {quoted}: Permission denied\n"})
        event_lines.add(run / "log/7", "batch", "ends", code=1)
        assert report.why(str(run)).fix.startswith("see who owns it: ls -ld /run/a;")


def test_an_exception_that_was_caught_is_not_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "warning: OSError: [Errno 28] No space left on device: no cache\nepoch 1\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"
    show(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert first_cause(capsys.readouterr().out) == "module-missing"


def test_what_ended_the_thread_that_pins_memory_is_the_cause(tmp_path: Path) -> None:
    earlier = "Retry 1: [Errno 122] Disk quota exceeded\n"
    thread = "Exception in thread Thread-1 (_pin_memory_loop):\n" + traceback("OSError: [Errno 24] Too many open files")
    text = earlier + thread + traceback("RuntimeError: Pin memory thread exited unexpectedly")
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == "too-many-files", str(found)


def test_of_two_tracebacks_that_one_log_mixes_the_exception_is_shown(tmp_path: Path) -> None:
    frame = f'{ends.BEGIN}:\n  File "train.py", line 30, in <module>\n'
    text = 2 * frame + 2 * "    main()\n" + 2 * "ValueError: bad sample 17\n"
    found = str(report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")}))))
    assert "cause: ValueError: bad sample 17" in found and "(exception)" in found


@pytest.mark.parametrize(
    ("said", "code", "cause"),
    [
        ('"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"\n', 134, "gpu-not-supported"),
        ("terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable\n", 134, "too-many-processes"),
        ("\nlibgomp: Thread creation failed: Resource temporarily unavailable\n", 1, "too-many-processes"),
        ("Loss is nan, stopping training\n{'loss': nan}\n", 1, "not-a-number"),
        ("Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding\nModuleNotFoundError: No module named 'encodings'\n", 1, "python-incomplete"),
    ],
)  # fmt: skip
def test_last_words_without_a_traceback_are_the_cause(said: str, code: int, cause: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (said, f"{code} node1 0\n")})))
    assert found.cause == cause, str(found)


@pytest.mark.parametrize("said", ["slurmstepd: error: Job 7 exceeded memory limit (626359956 > 512000000), being killed", "srun: Exceeded job memory limit"])
def test_a_job_that_slurm_cancels_for_its_memory_was_not_cancelled_by_somebody(said: str, tmp_path: Path) -> None:
    batch = f"{said}\nslurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-06-10T17:11:35 ***\n"
    found = report.why(str(run_directory(tmp_path / "run", {}, batch)))
    assert found.cause == "host-out-of-memory", str(found)


@pytest.mark.parametrize("words", ["ValueError: num_samples should be a positive integer value, but got num_samples=0", PEER])
def test_a_folder_of_data_that_is_empty_on_a_node_is_a_hint(words: str, tmp_path: Path) -> None:
    warning = "kit: warning: node1: the mount source /lustre/set is empty here\n  fix: look whether its file system is mounted on this node\n"
    found = report.why(str(run_directory(tmp_path / "run", {0: (traceback(words), "1 node1 0\n")}, nodes={"node1": warning})))
    assert found.cause != "mount-empty"
    assert "is empty on a node: /lustre/set (mount-empty), by run/log/7/node1.out:1" in str(found).split("hints, from messages in the logs")[1]


def test_tracebacks_that_a_program_got_over_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    caught = "Traceback (most recent call last):\n  File 'a.py', line 1\nPermissionError: [Errno 13] Permission denied: '/cache'\nno cache, going on\n"
    retried = "warning: Connection reset by peer, trying again\n"
    last = "Traceback (most recent call last):\n  File 'a.py', line 9\nZeroDivisionError: division by zero\n"
    teardown = "Exception ignored in: <function Pool.__del__>\nTraceback (most recent call last):\n  File 'b.py', line 1\nMemoryError\n"
    show(str(run_directory(tmp_path / "run", {0: (caught + retried + last + teardown, "1 node1 0\n")})))
    said = capsys.readouterr().out
    assert "cause: ZeroDivisionError: division by zero (exception)\n" in said
    assert "(permission-denied)" in said.split("hints, from messages in the logs")[1]


CALL = "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes={}, TensorDeviceTypes=TensorOptions())"
WAITED = "CollectiveFingerPrint(SequenceNumber=3, OpType=BARRIER)"


@pytest.mark.parametrize(
    ("usual", "odd", "said"),
    [
        (CALL.format(3, "ALLREDUCE", "12", "Float"), CALL.format(3, "ALLREDUCE", "10, 2", "Float"), "rank 3 has [10, 2], ranks 0-2 have [12]"),
        (CALL.format(3, "ALLREDUCE", "12", "Float"), CALL.format(3, "BROADCAST", "10", "Int"), "rank 3 calls BROADCAST, ranks 0-2 call ALLREDUCE"),
        (CALL.format(3, "ALLREDUCE", "12", "Float"), CALL.format(3, "ALLREDUCE", "12", "Int"), "rank 3 has Int, ranks 0-2 have Float"),
        (CALL.format(3, "ALLREDUCE", "12", "Float"), CALL.format(4, "ALLREDUCE", "12", "Float"), "rank 3 is at its call 4, ranks 0-2 are at their call 3"),
        (WAITED, CALL.format(3, "ALLREDUCE", "12", "Float"), "rank 3 calls ALLREDUCE, ranks 0-2 call BARRIER"),
    ],
)
def test_the_rank_whose_collective_differs_is_named_with_what_it_has_and_the_place(
    usual: str, odd: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(rank: int, own: str, other: int, others: str) -> tuple[str, str]:
        words = f"Rank {rank} is running collective: {own}, but Rank {other} is running collective: {others}.Collectives differ"
        file = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
        inner = f'  File "{file}", line 3245, in all_reduce\n    work = group.allreduce([tensor], opts)\n'
        error = f"RuntimeError: Detected mismatch between collectives on ranks. {words}\n"
        return traceback(error, "dist.all_reduce(grad)").replace("RuntimeError", f"{inner}RuntimeError", 1), f"1 node{rank // 2 + 1} {rank % 2}"

    ranks = {rank: end(rank, usual, 3, odd) for rank in range(3)}
    show(str(run_directory(tmp_path, {**ranks, 3: end(3, odd, 0, usual)})))
    shown = capsys.readouterr().out
    assert "\n  first: rank 3 on node2 (local rank 1): exit code 1; 3 more ranks recorded a failure\n" in shown
    place = "/home/me/train.py:41 (in torch/distributed/distributed_c10d.py:3245)"
    assert f"\ncause: the ranks' collectives differ: {said}, at {place} (ranks-disagree)\n" in shown
    assert "TORCH_DISTRIBUTED_DEBUG" not in shown.partition("  fix: ")[2]


def test_the_cause_is_what_came_before_a_clean_up_without_a_process_group(tmp_path: Path) -> None:
    missed = in_package(
        "torch/distributed/distributed_c10d.py",
        "raise ValueError(",
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
    )
    text = traceback("KeyError: 'labels'") + "\nDuring handling of the above exception, another exception occurred:\n\n" + missed
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert (found.cause, found.line) == ("exception", "KeyError: 'labels'"), str(found)


def test_a_chain_of_exceptions_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "Traceback (most recent call last):\n  File 'a.py', line 1\nOSError: [Errno 28] No space left on device\n\n"
        "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File 'a.py', line 3\nSaveError: checkpoint 7\n"
    )
    show(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert first_cause(capsys.readouterr().out) == "disk-full"


def traceback(line: str, source: str = "step(batch)") -> str:
    return f'Traceback (most recent call last):\n  File "/home/me/train.py", line 41, in main\n    {source}\n{line}\n'


@pytest.mark.parametrize(("file", "cause"), [("tools/run.sh", "program-missing"), ("/runs/a/lib/rank.sh", "exit-code")])
def test_what_the_scripts_of_kit_miss_at_the_end_of_a_container_is_no_cause(file: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(str(run_directory(tmp_path / "run", {0: (f"{file}: line 87: sleep: command not found\n", "1 node1 7\n")})))
    assert first_cause(capsys.readouterr().out) == cause


@pytest.mark.parametrize(("between", "cause"), [("", "exception"), ("epoch 1\n", "peer-gone")], ids=["at once", "later"])
def test_the_cause_is_the_exception_that_a_rank_printed_just_before_its_cleanup_missed_the_others(
    between: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {3: (traceback(PEER), "1 node2 1"), 1: (traceback("KeyError: 'labels'") + between + traceback(PEER), "1 node1 1")}
    show(str(run_directory(tmp_path / "run", ranks)))
    said = capsys.readouterr().out
    assert f"  first: rank {3 if between else 1} on " in said and first_cause(said) == cause


NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
NO_ENGINE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
NO_WORKER = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
TOO_LARGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def in_vllm(line: str, file: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/venv/lib/python3.12/site-packages/vllm/v1/{file}", line 8, in run\n    engine = Engine(*args)\n{line}\n'
    )


def marked(mark: str, text: str) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


def teed(local_rank: int, line: str) -> str:
    """What a process prints before torch knows its rank, as torchrun --tee marks it."""
    return marked(f"[default{local_rank}]:", traceback(line))


def of_engine(line: str, process: str = "(EngineCore_DP0 pid=17374) ", file: str = "engine/core.py") -> str:
    """What a process of vLLM prints as it fails: it logs the exception, and Python prints it as well."""
    logged = marked(f"{process}ERROR 09-28 15:47:24 [core.py:718] ", "EngineCore failed to start.\n" + in_vllm(line, file))
    return logged + marked(process, "Process EngineCore_DP0:\n" + in_vllm(line, file))


WORKER = marked("(Worker_TP0 pid=9) ERROR 09-28 15:47:20 [v1/executor/multiproc_executor.py:559] ", in_vllm(TOO_LARGE, "worker/gpu_worker.py"))
GOT_OVER = traceback("PermissionError: [Errno 13] Permission denied: '/cache'") + "no cache, going on\n"


@pytest.mark.parametrize(
    ("before", "process", "cause", "line"),
    [
        (of_engine(NO_BLOCKS), "", "gpu-out-of-memory", NO_BLOCKS),
        (of_engine(NO_BLOCKS, ""), "", "gpu-out-of-memory", NO_BLOCKS),
        (of_engine(NO_BLOCKS, "\x1b[1;36m(EngineCore_0 pid=7)\x1b[0;0m "), "", "gpu-out-of-memory", NO_BLOCKS),
        (of_engine(NO_BLOCKS), "(APIServer pid=17301) ", "gpu-out-of-memory", NO_BLOCKS),
        (of_engine("KeyError: 'layers.0.mlp'"), "", "exception", "KeyError: 'layers.0.mlp'"),
        (WORKER + of_engine(NO_WORKER), "", "gpu-out-of-memory", TOO_LARGE),
        (GOT_OVER, "", "exception", NO_ENGINE),
        ("", "", "exception", NO_ENGINE),
    ],
    ids=["its engine", "no names of processes", "colours", "a server", "no known words", "a worker of its engine", "an exception it got over", "no words"],
)
def test_the_cause_is_the_exception_of_vllms_other_process_to_which_its_last_one_points(
    before: str, process: str, cause: str, line: str, tmp_path: Path
) -> None:
    exits = "[rank0]:[W928 15:47:25 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit\n"
    text = before + exits + marked(process, in_vllm(NO_ENGINE, "engine/utils.py"))
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == cause and found.line.endswith(line) and f"\ncause: {line[:60]}" in str(found), str(found)


TORCHRUN = (
    "E0915 11:02:33.215000 812 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: {code}) local_rank: 1 (pid: 915) of binary: python\n"
    'Traceback (most recent call last):\n  File "/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 293, in launch_agent\n'
    "    raise ChildFailedError(\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\n"
    "Failures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60 + "\nRoot Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
    "  exitcode  : {code} (pid: 915)\n  error_file: <N/A>\n" + "=" * 60 + "\n"
)
ACCELERATE = (
    'Traceback (most recent call last):\n  File "/venv/lib/python3.12/site-packages/accelerate/commands/launch.py", line 815, in simple_launcher\n'
    "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\nsubprocess.CalledProcessError: Command '['python', 'train.py']' {end}.\n"
)
BY_CODE = ACCELERATE.format(end="returned non-zero exit status 1")
BY_TORCHRUN = traceback("subprocess.CalledProcessError: Command '['torchrun', '--nproc_per_node', '2', 'train.py']' returned non-zero exit status 1.")
CALLED = "subprocess.CalledProcessError: Command"
OF_C10D = traceback("RuntimeError: lost worker 0", "work.wait()").replace(
    "/home/me/train.py", "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
)
OF_RANK_0 = marked("[rank0]: ", traceback("AttributeError: 'Run' object has no attribute 'bar'"))
OF_RANK_1 = marked("[rank1]: ", traceback("KeyError: 'labels'"))
ALSO_KILLED = TORCHRUN.format(code=-6).replace("  <NO_OTHER_FAILURES>", "[1]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 917)")
NOTED = TORCHRUN.format(code=1).replace(  # where the program has torch.distributed.elastic.multiprocessing.errors.record
    "  error_file: <N/A>\n", "  error_file: /tmp/error.json\n  traceback : " + traceback("KeyError: 'labels'").replace("\n", "\n  ") + "\n"
)
LOGURU = (
    "2026-09-15 11:02:33 | ERROR    | __main__:<module>:41 - An error has been caught in function '<module>'\nTraceback (most recent call last):\n\n"
    '> File "/home/me/train.py", line 41, in main\n    step(batch)\n         └ {}\n\n' + "KeyError: 'labels'\n"
)
CLOSING = "W0915 11:02:33.1 812 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 914 closing signal SIGTERM\n"
GOT_ON = "[W] No space left on device\nModuleNotFoundError: No module named 'apex'\nRetry 1: 503 Server Error: Unavailable\n" + "step 3\n" * 10
WATCHDOG = "[rank1]:[E915 11:02:32.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"


@pytest.mark.parametrize(
    ("text", "cause", "line"),
    [
        (OF_RANK_1 + CLOSING + TORCHRUN.format(code=1), "exception", "KeyError: 'labels'"),
        (OF_RANK_1 + CLOSING + marked("[rank0]: ", traceback(PEER)) + TORCHRUN.format(code=1), "exception", "KeyError: 'labels'"),
        (OF_RANK_1 + CLOSING + traceback("EOFError") + TORCHRUN.format(code=1), "exception", "KeyError: 'labels'"),
        (marked("[rank0]: ", traceback(PEER)) + TORCHRUN.format(code=1), "peer-gone", PEER),
        (traceback(TOO_LARGE) + BY_CODE, "gpu-out-of-memory", TOO_LARGE),
        (GOT_OVER + TORCHRUN.format(code=-9), "killed", "  exitcode  : -9 (pid: 915)"),
        (GOT_OVER + TORCHRUN.format(code=-11), "segfault", "  exitcode  : -11 (pid: 915)"),
        ("step 3\n" + ALSO_KILLED, "aborted", "  exitcode  : -6 (pid: 915)"),
        (GOT_OVER + ACCELERATE.format(end="died with <Signals.SIGKILL: 9>"), "killed", "died with <Signals.SIGKILL: 9>."),
        (WATCHDOG + "terminate called after throwing an instance of 'c10::DistBackendError'\n" + TORCHRUN.format(code=-6), "nccl-timeout", WATCHDOG[:-1]),
        (GOT_ON + CLOSING * 9 + TORCHRUN.format(code=-9), "killed", "  exitcode  : -9 (pid: 915)"),
        (GOT_ON + ACCELERATE.format(end="died with <Signals.SIGKILL: 9>"), "killed", "died with <Signals.SIGKILL: 9>."),
        (GOT_ON + "terminate called after throwing\n" + CLOSING * 9 + TORCHRUN.format(code=-6), "aborted", "terminate called after throwing"),
        (GOT_ON + TORCHRUN.format(code=3), "exit-code", "  exitcode  : 3 (pid: 915)"),
        (TORCHRUN.format(code=3), "exit-code", "  exitcode  : 3 (pid: 915)"),
        (GOT_OVER + TORCHRUN.format(code=3), "exit-code", "  exitcode  : 3 (pid: 915)"),
        (TORCHRUN.format(code=-8), "arithmetic-fault", "  exitcode  : -8 (pid: 915)"),
        (OF_RANK_1 + OF_RANK_0 + TORCHRUN.format(code=1), "exception", "KeyError: 'labels'"),
        (OF_RANK_0 + OF_RANK_1 + TORCHRUN.format(code=1), "exception", "KeyError: 'labels'"),
        (OF_RANK_0 + marked("[rank1]: ", traceback(PEER)) + TORCHRUN.format(code=1), "exception", "no attribute 'bar'"),
        (marked("[rank1]: ", OF_C10D) + OF_RANK_0 + TORCHRUN.format(code=1), "exception", "no attribute 'bar'"),
        (OF_RANK_0 + marked("[rank2]: ", traceback("ValueError: no")) + TORCHRUN.format(code=-9), "killed", "  exitcode  : -9 (pid: 915)"),
        (
            teed(0, "ValueError: no") + teed(1, "KeyError: 'labels'") + TORCHRUN.format(code=1).replace(": 1 (local", ": 9 (local"),
            "exception",
            "KeyError: 'labels'",
        ),
        (teed(0, "ValueError: no") + "[default0]:going on\n" * 9 + teed(1, PEER) + TORCHRUN.format(code=1), "peer-gone", "remote worker crashing."),
        (OF_RANK_1 + OF_RANK_0 + TORCHRUN.format(code=1) + "once more\n" + traceback("ValueError: no"), "exception", "ValueError: no"),
        (OF_RANK_1 + TORCHRUN.format(code=1) + BY_TORCHRUN, "exception", "KeyError: 'labels'"),
        (TORCHRUN.format(code=-9) + BY_TORCHRUN, "killed", "  exitcode  : -9 (pid: 915)"),
        (OF_RANK_1 + TORCHRUN.format(code=1) + BY_TORCHRUN.replace("['torchrun", "['env', 'A=b', '/venv/bin/torchrun"), "exception", "KeyError: 'labels'"),
        (OF_RANK_1 + TORCHRUN.format(code=1) + BY_TORCHRUN.replace("['torchrun', ", "'A=b torchrun "), "exception", "KeyError: 'labels'"),
        (GOT_OVER + traceback(f"{CALLED} '['pip', 'install', 'deepspeed']' returned non-zero exit status 1."), "exception", "exit status 1."),
        (GOT_OVER + traceback(f"{CALLED} 'python accelerate/eval.py' returned non-zero exit status 1."), "exception", "exit status 1."),
        (NOTED, "exception", "  KeyError: 'labels'"),
        (traceback(PEER) + NOTED, "exception", "  KeyError: 'labels'"),
        (OF_RANK_1 + marked("[rank0]: ", traceback(PEER)) + NOTED, "exception", "[rank1]: KeyError: 'labels'"),
        (traceback("KeyError: 'labels'") + traceback(f"{PEER}\nncclRemoteError") * 2, "exception", "KeyError: 'labels'"),
        (LOGURU, "exception", "KeyError: 'labels'"),
        ("step 3\nan evaluation ended (exitcode: -9)\n" + traceback("KeyError: 'labels'"), "exception", "KeyError: 'labels'"),
        (GOT_OVER + ACCELERATE.format(end="returned non-zero exit status 3"), "exception", "exit status 3."),
        (traceback("subprocess.CalledProcessError: Command '['python', 'eval.py']' returned non-zero exit status 1."), "exception", "exit status 1."),
    ],
    ids=[
        "torchrun",
        "a rank that missed it",
        "a manager's process that missed it",
        "only ranks of other nodes",
        "accelerate",
        "SIGKILL",
        "SIGSEGV",
        "SIGABRT, and then SIGKILL",
        "accelerate, SIGKILL",
        "a watchdog",
        "SIGKILL, long after what it could do without",
        "accelerate, SIGKILL, long after that",
        "SIGABRT, long after that",
        "an exit code, long after that",
        "an exit code",
        "an exit code, after another exception",
        "SIGFPE",
        "of two exceptions that of the rank that torchrun saw fail first",
        "... also if it is the later one",
        "... but not if that rank only missed another",
        "... or torch's own call failed, in words that kit does not know",
        "... nor if a signal ended it",
        "that of the process that --tee marks by its number on its node",
        "not what another has got over, where that process missed others",
        "the program's own one, after torchrun had failed",
        "a program that calls torchrun",
        "a program that calls torchrun, SIGKILL",
        "a program that calls torchrun by its path",
        "a program that calls torchrun in a shell's line",
        "a program that installs a launcher",
        "a program that calls another in a folder with a launcher's name",
        "what a process noted for torchrun",
        "what a process noted for torchrun, of which only others speak",
        "what a process noted for torchrun, and printed",
        "processes that print no marks, of which two missed the first",
        "loguru, which marks a frame",
        "its own words of an exit code",
        "accelerate, an exit code",
        "no launcher",
    ],
)
def test_the_cause_is_how_a_process_ended_that_a_launcher_in_the_program_reports(text: str, cause: str, line: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == cause and found.line.endswith(line), str(found)


def test_a_process_that_deepspeed_has_lost_is_the_cause_of_an_exit_code_that_says_nothing(tmp_path: Path) -> None:
    text = "step 3\n[2026-09-15 11:02:33,215] [ERROR] [launch.py:341:sigkill_handler] ['python', 'train.py'] exits with return code = -9\n"
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, "247 node1 0\n")}))).cause == "killed"


@pytest.mark.parametrize("last", [marked("[rank0]: ", traceback(PEER)), OF_RANK_0], ids=["missed", "later"])
def test_of_what_deepspeeds_processes_raised_the_cause_is_the_first_one_that_does_not_miss_others(last: str, tmp_path: Path) -> None:
    text = "[rank0]:[W915 ProcessGroupNCCL.cpp:4571] using GPU 0\n" + OF_RANK_1 + last
    text += "[ERROR] [launch.py:341:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n"
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.line == "[rank1]: KeyError: 'labels'", str(found)


@pytest.mark.parametrize(
    "text",
    [
        "an evaluation ended, exitcode: -9\nan evaluation ended (exitcode: -9)",
        "free_memory(): 3.2 GB\npreallocate(): 4096 blocks\nfree(): 12 handles",
        "Floating point exception handling is on\nFloating point exceptions are ignored",
        "worker thread: Resource temporarily unavailable, retried",
    ],
    ids=["an exit code", "memory", "arithmetic", "a resource"],
)
def test_a_programs_own_words_do_not_say_how_it_ended(text: str, tmp_path: Path) -> None:
    assert report.why(str(run_directory(tmp_path / "run", {0: (f"{text}\nleaving\n", "3 node1 0\n")}))).cause == "exit-code"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (traceback("KeyError: 'labels'") + "{gone}{watchdog}", "exception"),
        (traceback("KeyError: 'labels'") + "{watchdog}train.sh: line 3:  4711 Aborted                 python train.py\n", "exception"),
        (traceback("KeyError: 'labels'") + "{watchdog}{dump}", "exception"),
        (traceback("KeyError: 'labels'") + "{dump}", "exception"),
        ("{watchdog}{dump}", "nccl-timeout"),
        (traceback("KeyError: 'labels'") + "epoch 2\n" * 9 + "{watchdog}", "nccl-timeout"),
        (traceback("KeyError: 'labels'") + "[Epoch 2/90] loss 0.3\n" * 9 + "{watchdog}", "nccl-timeout"),
        ("ERROR: bad sample\n" + traceback("KeyError: 'labels'") + "{watchdog}", "nccl-timeout"),
        (traceback(PEER) + "{watchdog}", "nccl-timeout"),
        ("{watchdog}" + traceback("KeyError: 'labels'") + "{watchdog}", "nccl-timeout"),
    ],
    ids=[
        "an exception",
        "one in a script of bash",
        "one before a dump of Python's stacks",
        "one right before a dump of Python's stacks",
        "none, before a dump of Python's stacks",
        "one that it got over",
        "... with a mark before each line",
        "one that it logged",
        "one that missed others",
        "one after the time was up",
    ],
)
def test_a_watchdog_that_aborts_a_rank_while_it_ends_by_an_exception_is_not_the_cause(text: str, cause: str, tmp_path: Path) -> None:
    gone = "[W729 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67): Broken pipe\nException raised from sendBytes at x.hpp:653\nframe #0: c10 (0x7)\n\n"
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
    watchdog = (
        f"[rank0]:[E117 ProcessGroupNCCL.cpp:523] [Rank 0] {watchdog}terminate called after throwing an instance of 'c10'\n  what():  [Rank 0] {watchdog}"
    )
    dump = "Fatal Python error: Aborted\n\nThread 0x00007f827947a6c0 (most recent call first):\n"
    dump += '  File "/usr/lib/python3.11/threading.py", line 982 in run\n' * 12 + "\nExtension modules: numpy._core._multiarray_umath (total: 1)\n"
    other = f"[rank1]:[E117 ProcessGroupNCCL.cpp:523] [Rank 1] {watchdog}"
    run = run_directory(tmp_path / "run", {1: (other, "134 node1 1\n"), 0: (text.format(gone=gone, watchdog=watchdog, dump=dump), "134 node1 0\n")})
    found = report.why(str(run))
    assert found.cause == cause and (found.rank == 0 or cause != "exception"), str(found)


def test_the_cause_is_the_process_for_which_lightning_kills_all_others(tmp_path: Path) -> None:
    said = "[rank: 1] Child process with PID 12345 terminated with code {}. Forcefully terminating all other processes to avoid zombies\n"
    for text, code, cause in (
        (marked("[rank1]: ", traceback("KeyError: 'labels'")), 1, "exception"),
        ("step 3\n", 1, "exit-code"),
        ("step 3\n", -9, "killed"),
    ):
        found = report.why(str(run_directory(tmp_path / f"{cause}", {0: (text + said.format(code), "137 node1 0\n")})))
        assert found.cause == cause, str(found)


def test_a_program_that_the_prolog_of_a_node_has_killed_is_not_the_cause(tmp_path: Path) -> None:
    said = "prolog.sh: line 3:  4711 Killed                  nvidia-smi\n"
    found = report.why(str(run_directory(tmp_path / "run", {0: ("step 3\n", "1 node1 0\n")}, nodes={"node1": said})))
    assert found.cause == "exit-code" and "(killed)" not in str(found), str(found)


def test_the_stacks_that_python_dumps_at_an_abort_are_shown_where_nothing_else_tells_the_cause(tmp_path: Path) -> None:
    dump = "Fatal Python error: Aborted\n\nCurrent thread 0x00007f8279fbfb80 (most recent call first):\n"
    found = report.why(str(run_directory(tmp_path / "run", {0: (f'{dump}  File "/home/me/train.py", line 7 in <module>\n', "134 node1 0\n")})))
    assert found.cause == "aborted" and "train.py" in str(found), str(found)


@pytest.mark.parametrize("mark", ["[rank0]: ", "[rank0]:[rank0]: ", "[default0]:[rank0]: ", "[default0]:"])
def test_the_marks_of_torch_and_of_torchrun_before_each_line_are_no_part_of_an_exception(mark: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (marked(mark, traceback(TOO_LARGE)), "1 node1 0\n")})))
    assert found.cause == "gpu-out-of-memory" and found.title.startswith(f"{TOO_LARGE}, at /home/me/train.py:41"), str(found)


def test_a_process_of_vllm_may_be_one_of_ray(tmp_path: Path) -> None:
    text = marked("\x1b[36m(Server pid=31, ip=10.0.0.2)\x1b[0m ", of_engine(NO_BLOCKS)) + in_vllm(NO_ENGINE, "engine/utils.py")
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == "gpu-out-of-memory" and NO_BLOCKS[:60] in found.line, str(found)


def test_the_cause_is_the_exception_that_datasets_or_torchcodec_has_caught(tmp_path: Path) -> None:
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    text = traceback("pyarrow.lib.ArrowInvalid: no rows in a.json") + direct
    text += traceback("datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset")
    found = report.why(str(run_directory(tmp_path / "a", {0: (text, "1 node1 0\n")})))
    assert found.line == "pyarrow.lib.ArrowInvalid: no rows in a.json", str(found)
    tried = [
        f"FFmpeg version {version}:\n" + traceback(f"OSError: libavutil.so.{version + 52}: cannot open shared object file: No such file or directory")
        + direct + traceback(f"OSError: Could not load this library: /venv/torchcodec/libtorchcodec_core{version}.so")
        for version in (8, 7)
    ]  # fmt: skip
    text = traceback("RuntimeError: Could not load libtorchcodec. Likely causes:\n  1. FFmpeg is not there\n\n" + "\n".join(tried))
    found = report.why(str(run_directory(tmp_path / "b", {0: (text, "1 node1 0\n")})))
    assert found.cause == "torchcodec-not-loaded", str(found)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Memory access fault by GPU node-4 (Agent handle: 0x1a) on address 0x7f00. Reason: Page not present or supervisor privilege.\n", "illegal-gpu-access"),
        ("'sm_103' is not a recognized processor for this target (ignoring processor)\nLLVM ERROR: Cannot select: intrinsic\n", "gpu-not-supported"),
    ],
    ids=["ROCm", "LLVM"],
)
def test_the_cause_of_an_abort_is_what_compiled_code_said_of_the_gpu(text: str, cause: str, tmp_path: Path) -> None:
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, "134 node1 0\n")}))).cause == cause


def test_the_cause_is_what_vllms_engine_met_while_it_ran(tmp_path: Path) -> None:
    met = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    found = report.why(str(run_directory(tmp_path / "run", {0: (of_engine(met) + in_vllm(dead, "engine/core_client.py"), "1 node1 0\n")})))
    assert found.cause == "illegal-gpu-access" and found.line.endswith(met), str(found)


def test_the_cause_of_an_invalid_usage_in_vllms_worker_is_what_nccl_warned_of(tmp_path: Path) -> None:
    warned = "[2026-07-08 10:09:09] node1:4887:4887 [0] init.cc:447 NCCL WARN Duplicate GPU detected : rank 0 and rank 2 both on CUDA device 7000"
    failed = in_vllm("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", "pynccl_wrapper.py")
    text = f"{warned}\n{marked('(VllmWorker rank=0 pid=4887) ERROR 07-08 10:09:09 [multiproc_executor.py:522] ', failed)}" + in_vllm(NO_WORKER, "core.py")
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert (found.cause, found.line) == ("gpu-shared", warned), str(found)


IN_GRAPH = """tensorflow.python.framework.errors_impl.{type}: Graph execution error:

Detected at node 'model/conv1/Conv2D' defined at (most recent call last):
    File "/home/me/train.py", line 12, in <module>
      model.fit(data)
    File "/venv/lib/python3.11/site-packages/keras/engine/training.py", line 1564, in fit
      tmp_logs = self.train_function(iterator)
Node: 'model/conv1/Conv2D'
{reason}
\t [[{{{{node model/conv1/Conv2D}}}}]] [Op:__inference_train_function_1234]
"""


@pytest.mark.parametrize(
    ("type", "reason", "before", "cause", "line"),
    [
        ("UnimplementedError", "DNN library is not found.", "2026-01-17 15:41:15: E cuda_dnn.cc:398] Possibly insufficient driver version: 460.106.0\n", "cudnn-not-started", 0),
        ("UnimplementedError", "DNN library is not found.", "", "cudnn-not-started", 1),
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[64,128] and type float on /GPU:0 by allocator GPU_0_bfc", "", "gpu-out-of-memory", 1),
        ("InvalidArgumentError", "indices[3] = 9 is not in [0, 9)", "", "graph-failed", 1),
    ],
)  # fmt: skip
def test_the_reason_of_tensorflow_is_found_behind_the_stack_of_its_graph(type: str, reason: str, before: str, cause: str, line: int, tmp_path: Path) -> None:
    raised = IN_GRAPH.format(type=type, reason=reason)
    found = report.why(str(run_directory(tmp_path / "run", {0: (before + traceback(raised, "model.fit(data)"), "1 node1 0\n")})))
    assert (found.cause, found.line) == (cause, [before[:-1], reason][line]), str(found)


@pytest.mark.parametrize("field", ["stage3_prefetch_bucket_size\n", ""], ids=["a field", "the whole"])
def test_of_a_value_that_pydantic_refuses_the_line_says_what_it_may_be(field: str, tmp_path: Path) -> None:
    said = "  Input should be a valid integer, got a number with a fractional part [type=int_from_float, input_value=0.5]"
    raised = f"pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\n{field}{said}\n    For further information"
    found = report.why(str(run_directory(tmp_path / "run", {0: (traceback(raised), "1 node1 0\n")})))
    assert (found.cause, found.line) == ("value-refused", said), str(found)


@pytest.mark.parametrize(
    "said",
    [
        "2026-05-13 18:10:02.100: F external/xla/xla/parse_flags_from_env.cc:224] Unknown flags in XLA_FLAGS: --xla_gpu_x=true",
        "F0513 18:10:02.100 7 parse_flags_from_env.cc:224] Unknown flags in XLA_FLAGS: --xla_gpu_x=true",
        "[2026-05-13 18:10:02,161 C 12236 12236] local_object_manager.cc:316:  Check failed: objects.emplace(id).second",
    ],
    ids=["XLA", "glog", "Ray"],
)
def test_what_compiled_code_logged_as_fatal_shows_why_it_aborted(said: str, tmp_path: Path) -> None:
    text = f'{said}\nFatal Python error: Aborted\n\nThread 0x00007f1a (most recent call first):\n  File "/a/threading.py", line 320 in wait\n'
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "134 node1 0\n")})))
    assert (found.cause, found.line) == ("aborted", said), str(found)


def test_where_the_first_line_of_an_exception_only_announces_it_the_next_one_shows_it(tmp_path: Path) -> None:
    text = traceback("RuntimeError: CUDA cannot be used because of the following issues:\nOutdated cuDNN installation found.\nInstalled version: 8907")
    assert report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")}))).line == "Outdated cuDNN installation found."


def test_what_two_processes_raised_at_the_same_time_is_found_though_their_lines_are_mixed(tmp_path: Path) -> None:
    title, frame = "Traceback (most recent call last):\n", '  File "/home/me/train.py", line 41, in main\n'
    text = f"{title}{title}{frame}{frame}    step(batch)    step(batch)\n\nRuntimeErrorRuntimeError: : CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.cause == "gpu-out-of-memory" and found.line.startswith("RuntimeErrorRuntimeError: : CUDA out of memory."), str(found)


def test_an_exception_whose_first_line_ends_with_a_colon_is_named_with_the_next_one(tmp_path: Path) -> None:
    text = traceback("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nTypeError: 'int' object is not iterable")
    found = report.why(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert found.title.startswith("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: TypeError: 'int' object"), found.title


def test_a_traceback_that_vllm_logged_is_not_the_cause_of_an_exit_code_later(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {0: (WORKER, "1 node1 0\n")})
    os.utime(run / "log/7/rank0.out", (10**9 - 60, 10**9 - 60))
    assert report.why(str(run)).cause == "exit-code"


@pytest.mark.parametrize(
    "text",
    [
        traceback(PEER, "work.wait()") + "\nDuring handling of the above exception, another exception occurred:\n\n" + traceback("AttributeError: log"),
        traceback("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclSystemError: call failed\nread: Connection reset by peer"),
    ],
    ids=["its clean-up raises something new", "NCCL calls it a system error"],
)
def test_a_rank_that_only_missed_another_is_said_to_have_noticed_its_end(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert first_cause(capsys.readouterr().out) == "peer-gone"


# Words that once were taken for a cause of another kind, and what is the cause.
FALSE_WORDS = {
    "a message of its own": (traceback("ValueError: the log says 'CUDA out of memory'", "raise ValueError(text)"), 1, "exception"),
    "a message of its own, in an exception as torch raises it": (
        traceback("RuntimeError: No space left on device?", "raise RuntimeError(text)"),
        1,
        "exception",
    ),
    "such a message, and no source": (
        'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nValueError: it says CUDA out of memory\n',
        1,
        "exception",
    ),
    "an early warning": ("warning: no cache: [Errno 28] No space left on device\n" + traceback("TypeError: 'int' object is not callable"), 1, "exception"),
    "a traceback that was logged": (
        "ERROR:root:no cache\n" + traceback("ConnectionRefusedError: [Errno 111] Connection refused", "connect()") + "going on\n",
        3,
        "exit-code",
    ),
    "its own database": (traceback("ConnectionRefusedError: [Errno 111] Connection refused", "database.connect()"), 1, "exception"),
    "a missing config file": (traceback("FileNotFoundError: [Errno 2] No such file or directory: 'conf/data.yaml'", "open(path)"), 1, "file-missing"),
    "a table with NaN": (traceback("ValueError: cannot convert float NaN to integer", "int(row.age)"), 1, "exception"),
    "memory that JAX asked for and did without": (
        "E1127 18:29:48.216182 7369 cuda_executor.cc:1365] [0] Failed to allocate device memory of 104.85GiB (112583507968 bytes): RESOURCE_EXHAUSTED: "
        ": CUDA_ERROR_OUT_OF_MEMORY: out of memory\n" + traceback("KeyError: 'labels'", "batch['labels']"),
        1,
        "exception",
    ),
    "a build that the program did without": (
        "FAILED: [code=1] a.o\na.cpp:9: error: expected ';'\n" + traceback("KeyError: 'labels'", "batch['labels']"),
        1,
        "exception",
    ),
    "a kernel that was not used": (
        "train.py:8: UserWarning: Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:988.)\n"
        + traceback("KeyError: 'labels'", "batch['labels']"),
        1,
        "exception",
    ),
    "a git repository behind ssh": (
        "Host key verification failed.\nfatal: Could not read from remote repository.\n" + traceback("KeyError: 'labels'", "batch['labels']"),
        1,
        "exception",
    ),
    "what PMIx and UCX go on without": (
        "[node1:4021] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168\n[1.2] [node1:4021:0] parser.c:2036 UCX  WARN  unused environment variable: UCX_HOME\nstep 3\n",
        3,
        "exit-code",
    ),
    "words of its own on conda": (traceback("ValueError: Run 'conda init' before 'conda activate'", "raise ValueError(text)"), 1, "exception"),
    "a store of its own": (traceback("ValueError: nothing to connect to (127.0.1.1, 29500)", "connect()"), 1, "exception"),
    "NumPy of its own": (traceback("RuntimeError: Numpy is not available for this codec", "decode()"), 1, "exception"),
    "shared memory of its own": (traceback("RuntimeError: could not unlink the shared memory file /ring_7: No such process", "close()"), 1, "exception"),
    "a memory pool of its own": (traceback("RuntimeError: cuMemCreate() is not implemented", "pool()"), 1, "exception"),
    "a call that the system lacks": (traceback("OSError: [Errno 38] Function not implemented", "os.pidfd_open(7)"), 1, "exception"),
    "a library of its own": (traceback("ValueError: The customer library was not found", "load()"), 1, "exception"),
    "a kernel of another package": (in_package("fast_ops/scan.py", "fast_cuda.scan(x)", "RuntimeError: Tensors must be contiguous"), 1, "exception"),
    "a port of its own server": (traceback("OSError: [Errno 98] Address already in use", "server.bind(port)"), 1, "exception"),
    "its own compiler": (traceback("subprocess.CalledProcessError: Command '['gcc', 'net.c']' returned non-zero exit status 1.", "compile()"), 1, "exception"),
    "its own broken pipe": (traceback("BrokenPipeError: [Errno 32] Broken pipe", "viewer.stdin.write(image)"), 1, "exception"),
}


@pytest.mark.parametrize("name", FALSE_WORDS)
def test_words_are_not_taken_for_another_cause(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, code, cause = FALSE_WORDS[name]
    show(str(run_directory(tmp_path / "run", {1: (text, f"{code} node1 1\n"), 0: (PEER, "1 node1 0\n")})))
    said = capsys.readouterr().out
    assert "  first: rank 1 on node1" in said and first_cause(said) == cause
    assert len(said.splitlines()) <= 25


def test_the_end_of_another_node_is_not_the_cause_of_an_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """srun ends the torchrun of a node whose ranks noted nothing."""
    ended = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9533 got signal: 15\n"
    text = traceback("KeyError: 'labels'", "batch['labels']")
    show(str(run_directory(tmp_path / "run", {1: (text, "1 node2 1\n")}, "srun: error: node1: task 0: Terminated\n", {"node1": ended, "node2": "W failed\n"})))
    said = capsys.readouterr().out
    assert "cause: KeyError: 'labels', at /home/me/train.py:41 (exception)\n" in said
    assert "(terminated)" not in said


def test_an_exception_far_from_the_end_of_its_log_is_found_and_little_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = '  File "/home/me/train.py", line 3, in f\n    g()\n  File "/home/me/train.py", line 6, in g\n    f()\n' * 750
    text = f"Traceback (most recent call last):\n{frames}RecursionError: maximum recursion depth exceeded\n" + "at exit: flushed a buffer\n" * 11000
    show(str(run_directory(tmp_path / "run", {1: (text, "1 node1 1\n")})))
    said = capsys.readouterr().out
    assert "cause: RecursionError: maximum recursion depth exceeded, at /home/me/train.py:6 (exception)\n  shown by run/log/7/rank1.out:3002:\n" in said
    assert len(said.splitlines()) <= 25


def boxed(line: str, source: str = "step(batch)") -> str:
    """A traceback as Rich draws it."""
    return f"""\
╭────────────── Traceback (most recent call last) ──────────────╮
│ /home/me/train.py:41 in main                                  │
│                                                               │
│   40 │   for batch in loader:                                 │
│ ❱ 41 │   │   {source:<53}│
╰───────────────────────────────────────────────────────────────╯
{line}
"""


@pytest.mark.parametrize(
    ("line", "source", "said"),
    [
        ("KeyError: 'labels'", "batch['labels']", "KeyError: 'labels', at /home/me/train.py:41 (exception)"),
        (
            "OutOfMemoryError: CUDA out of memory.",
            "step(batch)",
            "OutOfMemoryError: CUDA out of memory., at /home/me/train.py:41: the GPU's memory ran out (gpu-out-of-memory)",
        ),
        ("ValueError: CUDA out of memory?", "raise ValueError(text)", "ValueError: CUDA out of memory?, at /home/me/train.py:41 (exception)"),
    ],
)
def test_an_exception_below_a_traceback_that_rich_drew_is_the_cause_with_its_place(line: str, source: str, said: str, tmp_path: Path) -> None:
    found = report.why(str(run_directory(tmp_path / "run", {0: (boxed(line, source), "1 node1 0\n")})))
    assert f"\ncause: {said}\n" in str(found) and f"  | {line}\n" in str(found)


def test_the_last_of_a_group_of_exceptions_is_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "/home/me/train.py", line 2, in <module>\n  |     raise ExceptionGroup("two", found)\n'
        "  | ExceptionGroup: two (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "/home/me/train.py", line 9, in load\n    |     int("x")\n    | ValueError: bad number\n    +------------------------------------\n'
    )
    show(str(run_directory(tmp_path / "run", {0: (text, "1 node1 0\n")})))
    assert "cause: ValueError: bad number, at /home/me/train.py:9 (exception)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "words", "cause"),
    [
        ("left with code 0, while others still waited for it", "it left with exit code 0", "left-early"),
        ("was not where the others waited for it: it hung, or was killed with its shell", "it recorded no end", "rank-missing"),
    ],
)
def test_the_rank_that_the_batch_script_blames_without_a_note_is_named(
    how: str, words: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = f"kit: error: node2: rank 2 (local rank 0) {how}; the end of log/7/rank2.out:\n"
    show(str(run_directory(tmp_path / "run", {0: (PEER, "1 node1 0\n"), 2: ("epoch 3\n", "")}, batch)))
    said = capsys.readouterr().out
    assert f"  first: rank 2 on node2 (local rank 0): {words}; 1 more rank recorded a failure\n" in said and first_cause(said) == cause
    assert "cause: rank 2 " in said and "  | epoch 3\n" in said


@pytest.mark.parametrize(("silent_s", "said"), [(700, "11 min"), (30, "")])
def test_a_run_that_was_cancelled_after_a_silence_is_said_to_have_been_silent(
    silent_s: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_directory(tmp_path, {0: ("epoch 1\n", ""), 1: ("epoch 1\n", "")})
    event_lines.add(run / "log/7", "batch", "stopped_by", 1_800_000_000, state="CANCELLED", problem="this job is being ended (CANCELLED)")
    for rank in (0, 1):
        os.utime(run / f"log/7/rank{rank}.out", (1_800_000_000 - silent_s - rank,) * 2)
    show(str(run))
    lines = [line for line in capsys.readouterr().out.splitlines() if "printed nothing" in line]
    assert lines == ([f"  before that its ranks had printed nothing for {said}; next time, while it hangs: kit hang"] if said else [])


def test_events_of_the_program_are_not_taken_for_slurms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path, {0: ('Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyError: 1\n', "1 node1 0\n")})
    for name, state in (("job_state", "CANCELLED"), ("evaluation", "TIMEOUT"), ("TIMEOUT", "")):
        event_lines.add(run / "log/7", "program", name, 1_800_000_000, state=state, cause="node-failed")
    show(str(run))
    assert first_cause(capsys.readouterr().out) == "exception"


def test_under_spawn_the_node_is_named_whose_program_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = "kit: error: node2: the program of node 1 {}; the end of log/7/rank1.out:\n"
    for how, note, words in (("exited with code 4", "4 node2 0\n", "exit code 4"), ("left with code 0, while others still waited for it", "", "it left with")):
        run = run_directory(tmp_path / words, {0: (PEER, "1 node1 0\n"), 1: ("epoch 1\n", note)}, batch.format(how))
        (run / "run.json").write_text(json.dumps({"job_id": "7", "plan": {"program": {"launcher": "spawn"}}}))
        show(str(run))
        said = capsys.readouterr().out
        assert f"  first: the program of node 1 on node2: {words}" in said and "rank 1 " not in said.replace("rank 1 noted", "")


@pytest.mark.parametrize(
    ("plan", "fix"),
    [
        (
            {"policy": {"on_preempt": "checkpoint"}, "header": [["signal", "B:USR1@120"]]},
            "or leave out `on_preempt: checkpoint`, which asks for a checkpoint by it",
        ),
        ({"header": [["signal", "USR1@60"]]}, "or leave out `slurm: {signal: ...}`, which sends it"),
        ({}, "the job names nothing that sends it: a person did, or the site"),
    ],
)
def test_the_fix_for_a_signal_names_what_sent_it(plan: dict[str, object], fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "138 node1 0\n")})
    (run / "run.json").write_text(json.dumps({"job_id": "7", "plan": plan}))
    show(str(run))
    said = capsys.readouterr().out
    assert first_cause(said) == "unhandled-signal" and f"signal.signal(signal.SIGUSR1, ...)); {fix}\n" in said


def test_no_fix_for_a_run_on_this_machine_names_what_only_slurm_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "137 local0 0\n")})
    record = json.loads((run / "run.json").read_text())
    for local, words in ((False, "--slurm mem=0"), (True, "fewer ranks or DataLoader workers")):
        (run / "run.json").write_text(json.dumps({**record, "local": local}))
        show(str(run))
        said = capsys.readouterr().out
        assert first_cause(said) == "killed" and "else by a user or an administrator" in said and words in said and ("mem=0" in said) != local
    # Of these only Slurm's words tell.
    by_slurm = {
        "node-failed",
        "deadline",
        "ranks-unaccounted",
        "step-not-started",
        "node-unreachable",
        "run-directory-missing-on-a-node",
        "run-directory-missing",
    }
    words = re.compile(r"--slurm |\bsacct\b|\bscontrol\b|\bsinfo\b|\bsrun ")
    again = run_facts.Again(["kit", "run", "JOB"])
    here = run_facts.Facts(
        again=again, more_memory=run_facts._more_memory(again, is_local=True), without_node=run_facts._without_node(again, "local0", is_local=True)
    )
    assert {cause.name for cause in findings.CAUSES if words.search((cause.local_fix or cause.fix).format_map(here))} == by_slurm


@pytest.mark.parametrize(
    ("local", "end"), [(False, "; tell the administrators, and submit without the node: kit submit JOB --slurm exclude=node2"), (True, "")]
)
def test_only_a_job_of_slurm_is_told_to_run_without_the_node(local: bool, end: str, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {3: ("OSError: [Errno 5] Input/output error: '/data/x'\n", "1 node2 1\n")})
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "local": local}))
    found = report.why(str(run))
    assert found.cause == "file-system-failed" and found.fix.endswith(f" is gone when that has ended{end}")


def test_the_batch_scripts_word_is_that_of_kit_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = "kit: error: node2: rank 3 (local rank 1) exited with code 4; the end of log/7/rank3.out:\n"
    show(str(run_directory(tmp_path / "run", {0: ("epoch 1\n", "9 node1 0\n"), 3: ("epoch 1\n", "4 node2 1\n")}, batch)))
    assert "  first: rank 3 on node2 (local rank 1): exit code 4; 1 more rank" in capsys.readouterr().out


@pytest.mark.parametrize(("note", "others"), [("", ""), ("9 node1 0\n", "; 1 more rank recorded a failure")])
def test_the_other_ranks_are_counted_though_the_one_at_fault_left_no_note(note: str, others: str, tmp_path: Path) -> None:
    batch = "kit: error: node2: rank 3 (local rank 1) exited with code 4; the end of log/7/rank3.out:\n"
    said = str(report.why(str(run_directory(tmp_path / "run", {0: ("epoch 1\n", note)}, batch))))
    assert f"  first: rank 3 on node2 (local rank 1): exit code 4{others}\n" in said


def test_a_lost_node_is_named_where_no_rank_is_at_fault(tmp_path: Path) -> None:
    missed = "RuntimeError: [pair.cc:537] Read error [172.30.0.12]:22202: Connection reset by peer\n"
    run = run_directory(
        tmp_path / "run",
        {0: (f'epoch 1\nTraceback (most recent call last):\n  File "train.py", line 8, in main\n{missed}', "1 node1 0\n"), 1: ("epoch 1\n", "")},
    )
    event_lines.add(run / "log/7", "batch", "node_lost", node="node2", state="silent")
    event_lines.add(run / "log/7", "batch", "ends", node="node1", code=1, outcome="FAILED")
    found = report.why(str(run))
    assert (found.cause, found.rank, found.node) == ("node-failed", None, "node2")


def test_the_state_that_only_slurm_knows_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "")})
    history.add(history.Run("7", str(run), "made", "2x2", 0.0, state="NODE_FAIL"))
    monkeypatch.chdir(tmp_path)
    show(None)
    said = capsys.readouterr().out
    assert said.startswith("made (7), 2x2: it ended NODE_FAIL\n") and "  shown by Slurm's state of the job: NODE_FAIL\n" in said
    assert "cause: a node went down: node1 (node-failed)\n" in said


def test_the_fix_of_a_state_names_no_slurm_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "")})
    (run / "run.json").write_text(json.dumps({**json.loads((run / "run.json").read_text()), "local": True}))
    history.add(history.Run("7", str(run), "made", "2x2", 0.0, state="CANCELLED", local=True))
    found = report.why(str(run))
    assert found.cause == "cancelled" and found.fix.startswith("start it again: kit ") and "sacct" not in found.fix


def test_of_a_job_whose_node_failed_before_it_began_the_status_says_how_to_have_it_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "")})
    job = history.Run("7", str(run), "made", "2x2", 0.0)
    queued = {"7": [slurm.Queued("NODE_FAIL", "", "", "", "", "None", str(run))]}
    assert job_status.query(job, queued, {})[1:3] == ("NODE_FAIL", "")
    shutil.rmtree(run / "log")
    assert "with `slurm: {requeue: true}` Slurm starts such a job again" in job_status.query(job, queued, {}).detail


def test_a_failed_job_without_any_log_has_a_run_directory_that_its_nodes_do_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = run_directory(tmp_path / "run", {})
    shutil.rmtree(run / "log")
    job = history.Run("7", str(run), "made", "2x2", 0.0)
    queued = slurm.Queued("FAILED", "", "", "", "", "NonZeroExitCode", str(run))
    found = job_status.query(job, {"7": [queued]}, {})
    fix = "(run-directory-missing): submit from a folder on a file system that every node sees"
    assert (found.state, found.detail) == ("FAILED", f"its nodes do not see {run} {fix}")
    history.add(history.ended(job, found.state, found.detail))
    show("7")
    said = capsys.readouterr().out
    assert first_cause(said) == "run-directory-missing" and f"put {run} on a file system that every node sees" in said


def test_a_run_whose_logs_were_removed_is_not_told_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "")})
    shutil.rmtree(run / "log")
    used = Usage("node[1-2]", 3, 60.0)
    history.add(history.Run("7", str(run), "made", "2x2", 0.0, state="FAILED", why="node1: rank 0 exited with code 3", usage=used))
    show("7")
    said = "made (7), 2x2: it ended FAILED\n  node1: rank 0 exited with code 3\n  more is not known: run/log/7 was removed\n"
    assert capsys.readouterr().out == said


def test_a_run_whose_ranks_failed_may_not_have_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(str(run_directory(tmp_path / "run", {0: ("MemoryError\n", "1 node1 0\n")})))
    assert capsys.readouterr().out.startswith("made (7), 2x2: no log says that it has ended, but ranks failed\n  first: rank 0")


def test_a_run_here_whose_kit_is_gone_goes_on_no_more_whoever_has_its_number_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n", "")})
    record = json.loads((run / "run.json").read_text())
    own = local_processes.identity()
    goes_on, is_gone = "no log says that it has ended", "kit was killed before the end of it"
    for other, said in (({}, goes_on), ({"began": own["began"] - 1}, is_gone), ({"machine": "another"}, goes_on)):
        (run / "run.json").write_text(json.dumps({**record, **own, **other}))
        history.add(history.Run("7", str(run), "made", "2x2", time.time(), local=True))
        show("7")
        assert capsys.readouterr().out.startswith(f"made (7), 2x2: {said}\n")


def test_lines_of_an_attempt_before_a_requeue_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n"
    again = "kit: node1: job 7 on node[3-4]: 2 x 2 processes, runtime none, master 10.0.0.3:61007\n"
    show(str(run_directory(tmp_path / "run", {0: ("MemoryError\n", "1 node3 0\n")}, batch + again)))
    said = capsys.readouterr().out
    assert first_cause(said) == "memory-error" and "preempted" not in said


def test_a_job_that_slurm_starts_again_has_not_died(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = "kit: node1: all ranks have stopped for a checkpoint, progress: 12; Slurm starts this job again\n"
    show(str(run_directory(tmp_path / "run", {0: ("saved\n", "75 node1 0\n")}, batch)))
    assert capsys.readouterr().out.splitlines()[0] == "made (7), 2x2: Slurm starts it again"


def test_the_job_that_went_on_for_another_is_the_one_that_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path / "run", {0: ("MemoryError\n", "1 node1 0\n")}, "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT X DUE TO PREEMPTION ***\n")
    (run / "log/7/continued-by").write_text("9\n")
    (run / "log/9").mkdir()
    (run / "log/slurm-9.out").write_text("kit: node2: all ranks ended well\n")
    event_lines.add(run / "log/9", "batch", "ends", code=0)
    show(str(run))
    assert capsys.readouterr().out == "made (9), 2x2: it COMPLETED: all ranks ended well\n"
    (run / "log/9/continued-by").write_text("7\n")  # nobody does that, but an endless loop would be worse
    assert job_chain.last_job(RunPaths(run), "7") in ("7", "9")


RAISED = "Traceback (most recent call last):\n  File \"x.py\", line 1\nModuleNotFoundError: No module named 'x'\n"


def second_attempt(place: Path, said: str) -> Path:
    """A run whose rank failed in the first attempt, and in the second with code 3."""
    run = run_directory(place, {0: (RAISED, "")})
    logs = run / "log/7"
    event_lines.add(logs, "batch", "start", 10**9, 2, node="node1", log=0)
    event_lines.of_rank(logs, 0, "3 node1 0", 10**9, 2)
    (logs / "attempt2").mkdir()
    (logs / "attempt2/rank0.out").write_text(said)
    return run


def test_what_a_rank_said_in_an_earlier_attempt_is_not_its_last_word(tmp_path: Path) -> None:
    found = report.why(str(second_attempt(tmp_path / "run", "one\nquiet\n")))
    assert found.cause == "exit-code" and "ModuleNotFoundError" not in str(found) and "run/log/7/attempt2/rank0.out:2" in str(found)


def test_a_run_whose_attempts_share_their_logs_as_older_ones_do_is_explained_as_well(tmp_path: Path) -> None:
    run = second_attempt(tmp_path / "run", "")
    shutil.rmtree(run / "log/7/attempt2")
    with (run / "log/7/rank0.out").open("a") as log:
        log.write("kit: node1: attempt 2\nquiet\n")
    found = report.why(str(run))
    assert (found.cause, found.rank) == ("exit-code", 0) and "run/log/7/rank0.out:5" in str(found)


def test_a_job_that_was_to_start_again_and_was_refused_has_died(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = "kit: node1: stopped; Slurm starts this job again\nkit: error: node1: the job that should go on is refused\n  fix: submit it by hand: sbatch x\n"
    show(str(run_directory(tmp_path / "run", {0: ("saved\n", "75 node1 0\n")}, batch)))
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "made (7), 2x2: it ended FAILED" and "the job that should go on is refused" in said


def test_a_task_of_an_array_is_found_by_squeues_name_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = run_directory(tmp_path / "run", {0: ("MemoryError\n", "1 node1 0\n")})
    for name in ("slurm-7.out", "7"):
        (run / "log" / name).rename(run / "log" / name.replace("7", "7_3"))
    noted_run(run, "made", 2, 2, "7", local=False, array="0-3")
    show("7_3")
    assert first_cause(capsys.readouterr().out) == "memory-error"
    with pytest.raises(UsageError, match="is an array\n  fix: name one of its tasks, as in 7_0"):
        show("7")


def test_an_exit_code_without_an_exception_is_called_so_with_the_end_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"line {index}\n" for index in range(100))
    show(str(run_directory(tmp_path / "run", {0: (text, "3 node1 0\n")})))
    said = capsys.readouterr().out
    assert said.splitlines()[:3] == [
        "made (7), 2x2: no log says that it has ended, but ranks failed",
        "  first: rank 0 on node1 (local rank 0): exit code 3",
        "  the end of run/log/7/rank0.out:100:",
    ]
    assert "  the end of run/log/7/rank0.out:100:\n  | line 92\n" in said
    assert said.splitlines()[11:] == [
        "cause: the program left with exit code 3, without an exception (exit-code)",
        "  shown by run/log/7/events/node1.jsonl:2:",
        "  | ended with code 3 on node1",
        "  fix: look in the program for what exits with 3; its whole log: kit logs 7 --rank 0",
    ]


def test_runs_that_did_not_die_are_called_so(kit, tmp_path: Path) -> None:
    ended = run_directory(tmp_path / "ended", {}, "kit: node1: all ranks ended well\n")
    active = run_directory(tmp_path / "active", {0: ("epoch 1\n", "")})
    waiting = run_directory(tmp_path / "waiting", {})
    (waiting / "log/slurm-7.out").unlink()
    never = run_directory(tmp_path / "never", {})
    shutil.rmtree(never / "log")
    (never / "run.json").write_text(json.dumps({"job_id": None, "plan": {"layout": {"name": "made", "nodes": 1, "processes_per_node": 1}}}))
    assert kit("why", str(ended)).stdout == "made (7), 2x2: it COMPLETED: all ranks ended well\n"
    assert kit("why", str(active)).stdout.splitlines()[0] == "made (7), 2x2: no log says that it has ended"
    assert kit("why", str(active)).stdout.splitlines()[-1] == "  where it is: kit status 7"
    assert kit("why", str(waiting)).stdout == "made (7), 2x2: it has no log yet\n  where it is: kit status 7\n"
    assert kit("why", str(never)).stdout == f"made (no job), 1x1: it has not started: no job id, no log\n  start it: sbatch {never}/run_script.sh\n"


def test_a_run_that_was_submitted_by_hand_is_found_by_its_log(kit, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {0: ("MemoryError\n", "1 node1 0\n")})
    (run / "run.json").write_text(json.dumps({"job_id": None, "plan": {}}))
    assert first_cause(kit("why", str(run)).stdout) == "memory-error"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"job_id": 7}', '{"job_id": "7", "plan": 5, "invocation": 3}', '{"job_id": "7", "plan": {"header": 1, "program": {"command": 5}}}'],
)
def test_a_broken_record_ends_in_words(content: str, kit, tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", {0: ("MemoryError\n", "1 node1 0\n")})
    (run / "run.json").write_text(content)
    done = kit("why", str(run), check=False)
    assert done.returncode in (0, 1) and "internal error" not in done.stderr
    assert "(memory-error)" in done.stdout or "is not a run directory" in done.stderr


def test_an_unknown_run_is_refused(kit) -> None:
    done = kit("why", "nothing", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: there is no run nothing\n  fix: give a job id, a run directory, or a name; kit runs lists them\n")


def test_a_run_of_kit_run_is_explained_without_naming_it(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nif os.environ['RANK'] == '1':\n    import flash_attn\n")
    kit("run", "train.py", "-j", "1x2", "--launcher", "srun", "--runtime", "none", check=False)
    said = kit("why").stdout
    assert first_cause(said) == "module-missing" and "there is no Python module flash_attn in the host's Python" in said
    assert "  first: rank 1 on local0 (local rank 1): exit code 1\n" in said


def test_ranks_that_never_met_are_remembered(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("# torch.distributed.init_process_group\n")
    done = kit("run", "train.py", "-j", "1x2", "--launcher", "srun", "--runtime", "none")
    warning = "warning: 2 ranks ended with 0, but none was ever connected with another"
    assert f"kit: {warning}" in done.stdout + done.stderr
    assert f"{warning}" in kit("status").stdout
    said = kit("why").stdout
    assert f"  {warning}" in said and "  fix: have every rank call torch.distributed.init_process_group()" in said


def test_whatever_a_program_prints_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        b"10%\r90%\rdone\n"
        + b"x" * 300000
        + b"\n\x1b[31m\xff\x00Traceback (most recent call last):\nFileNotFoundError: [Errno 2] No such file or directory: '\x1b]0;{node}{again:\xe2\x98\x83'\n"
    )
    run = run_directory(tmp_path / HOSTILE_NAME, {0: ("", "1 node1 0\n")})
    (run / "log/7/rank0.out").write_bytes(text)
    show(str(run))
    said = capsys.readouterr().out
    assert "(file-missing)" in said and "\x1b" not in said and "{node}{again:☃" in said
    assert max(map(len, said.splitlines())) < 1100


def test_a_long_log_is_read_from_its_end_and_its_lines_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path / "run", {0: ("epoch 1\n" * 200000 + "MemoryError\n", "1 node1 0\n")})
    assert sum(map(len, logs.read(run / "log/7/rank0.out", RANK).lines)) <= logs.TAIL
    show(str(run))
    assert "  shown by run/log/7/rank0.out:200001:\n  | MemoryError\n" in capsys.readouterr().out


def test_ranks_lines_in_a_nodes_log_are_left_to_the_ranks_logs(tmp_path: Path) -> None:
    (tmp_path / "node1.out").write_text("[rank3] MemoryError\nFATAL: no\n")
    assert logs.read(tmp_path / "node1.out", NODE).text == "\nFATAL: no"


def test_nothing_is_changed_and_nothing_is_written(tmp_path: Path, kit) -> None:
    run = copy_of("exception", tmp_path)

    def state() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in [run, *run.rglob("*")]}

    before = state()
    folders = [path for path in before if path.is_dir()]
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    kit("why", str(run))
    for path in folders:
        path.chmod(0o755)
    assert state() == before


def test_a_thousand_nodes_of_eight_ranks_cost_some_starts_of_kit(tmp_path: Path, kit_anew) -> None:
    run = run_directory(
        tmp_path / "run",
        {3291: ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "1 node411 3\n")},
        "srun: error: node412: task 3291\n" * 9999,
        nprocs=8,
    )
    logs = run / "log/7"
    (tmp_path / "rank").write_text("step 1: loss 2.3\n" * 20000 + f"Traceback (most recent call last):\n{PEER}\n")
    (tmp_path / "node").write_text("[rank1] step 1: loss 2.3\n" * 20000 + "a warning\n" * 2000)
    for node in range(1000):
        os.link(tmp_path / "node", logs / f"node{node}.out")
    for rank in range(8000):
        if rank != 3291:
            os.link(tmp_path / "rank", logs / f"rank{rank}.out")
            event_lines.of_rank(logs, rank, f"1 node{rank // 8} {rank % 8}", 10**9 + 1)
    start_s = _time_of_children_s()
    kit_anew("--version")
    before_s = _time_of_children_s()
    said = kit_anew("why", str(run)).stdout
    elapsed_s = _time_of_children_s() - before_s
    assert first_cause(said) == "gpu-out-of-memory"
    assert "  first: rank 3291 on node411 (local rank 3): exit code 1; 7999 more ranks recorded a failure\n" in said
    assert elapsed_s < 50 * (before_s - start_s)  # what a start of kit costs at this moment, as a measure of the machine


def _time_of_children_s() -> float:
    """Of processors, since this machine may have other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("kit submit j.yaml", "", "kit submit j.yaml"),
        ("kit submit j.yaml --time 1 -- --time 2", "--time 3", "kit submit j.yaml --time 3 -- --time 2"),
        ("kit submit j.yaml --time=1 --", "--time 3", "kit submit j.yaml --time 3"),
        ("kit run t.py --env A=1 --env B=2 -j 1x2", "--env A=3 --env C=4", "kit run t.py --env B=2 -j 1x2 --env A=3 --env C=4"),
        ("kit run t.py --slurm mem=1G --slurm hold", "--slurm mem=0", "kit run t.py --slurm hold --slurm mem=0"),
        ("kit run t.py --runtime none -j 1x2", "--image IMAGE", "kit run t.py -j 1x2 --image IMAGE"),
        ("kit submit t.py --runtime=enroot", "--image IMAGE", "kit submit t.py --runtime=enroot --image IMAGE"),
        ("kit run t.py --name --time", "--time 3", "kit run t.py --name --time 3"),
        ("kit submit t.py -t 1 -N2", "--time 3", "kit submit t.py --nodes 2 --time 3"),
        ("kit submit t.py --slurm mem-per-cpu=4G", "--slurm mem=0", "kit submit t.py --slurm mem=0"),
        ("kit submit t.py -x n1 -p gpu", "--slurm exclude=n2", "kit submit t.py --partition gpu --slurm exclude=n2"),
        ("kit submit t.py --exclude=n1", "--slurm exclude=n2", "kit submit t.py --slurm exclude=n2"),
    ],
)
def test_options_are_put_into_the_command_in_place_of_those_that_it_had(words: str, options: str, command: str) -> None:
    assert f"{run_facts.Again(words.split()):{options}}" == command


def test_a_node_to_leave_out_joins_those_that_the_job_left_out() -> None:
    again = run_facts.Again(["kit", "submit", "t.py", "-x", "n1"], "n1,n9")
    assert f"{again:--slurm exclude=n2}" == "kit submit t.py --slurm exclude=n1,n9,n2"


def test_the_command_is_without_a_run_directory_that_exists() -> None:
    typed = ["/opt/kit", "submit", "a b.yaml", "--output", "run", "--follow", "--output=x", "--", "--output", "y"]
    assert f"{run_facts.Again(run_facts.typed({'invocation': typed}))}" == "kit submit 'a b.yaml' -- --output y"
    assert f"{run_facts.Again(run_facts.typed({'invocation': ['python', 'x']}))}" == "kit submit JOB"
    lines = ["kit", "run", "a.yaml", "--setup", "cd x\nmake"]
    assert f"{run_facts.Again(run_facts.typed({'invocation': lines}))}" == "kit run a.yaml --setup $'cd x\\nmake'"


def test_every_cause_has_a_plain_name_words_and_a_fix() -> None:
    assert findings.CAUSES
    for cause in findings.CAUSES:
        assert (
            re.fullmatch(r"[a-z0-9-]+", cause.name)
            and cause.title
            and cause.fix
            and (cause.codes or (cause.patterns and cause.where) or cause.name in WITHOUT_WORDS or cause.weight == Weight.REFUSAL)
        )
        assert isinstance(cause.weight, Weight)
        for text in (cause.title, cause.fix, cause.local_fix, cause.recorded_fix):
            assert text.format_map(run_facts.Facts(again=run_facts.Again(["kit", "submit", "JOB"]))) or text == ""


def test_the_options_of_every_fix_are_those_of_kit() -> None:
    from kit.config import job

    known = {job.option_name(key) for key in job.KEYS}
    fixes = " ".join(text for cause in findings.CAUSES for text in (cause.fix, cause.local_fix, cause.recorded_fix))
    commands = re.findall(r"\{again:((?:[^{}]|\{\w+\})*)\}", fixes)
    assert len(commands) == fixes.count("{again:") > 0, "not every command was found"
    for options in commands:
        found = re.findall(r"(--\S+) (\S+)", options)
        assert len(found) == options.count("--"), options
        for name, value in found:
            assert name in known and value, options
            assert "=" in value or name not in ("--env", "--slurm"), options


def test_every_recorded_cause_exists() -> None:
    assert {(CORPUS / name / "cause").read_text().strip() for name in RECORDED} <= {*NAMES, "unknown"}


def rows() -> list[str]:
    """The table of docs/causes.md: each message of each cause, with what is known of no run in capitals."""
    again = run_facts.Again(["kit", "submit", "JOB"])
    known = run_facts.Facts(again=again, own_fix="kit's own words", inside="the image", elsewhere=run_facts._elsewhere(again, "any"))
    known |= {"more_memory": run_facts._more_memory(again, is_local=False), "without_node": run_facts._without_node(again, "NODE", is_local=False)}
    recorded = Counter((CORPUS / name / "cause").read_text().strip() for name in RECORDED)
    shown = []
    for cause in sorted(findings.CAUSES, key=lambda cause: NAMES.index(cause.name)):
        title, fix = (text.format_map(known).replace("|", "\\|") for text in (cause.title, cause.fix))
        otherwise = "by a test" if re.search(rf'"{cause.name}"|\({cause.name}\\\)', CAUSING) else "text only"
        shown.append(f"| `{cause.name}` | {title} | {fix} | {recorded[cause.name] or otherwise} |")
    return list(dict.fromkeys(shown))


def test_the_table_of_causes_is_the_code() -> None:
    head, table = "| cause | message | fix | recorded |\n|---|---|---|---|\n", "\n".join(rows())
    text = DOCUMENT.read_text()
    if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
        DOCUMENT.write_text(re.sub(re.escape(head) + r"(?:\|.*\n)*", lambda _: f"{head}{table}\n", text))
    assert f"{head}{table}\n" in DOCUMENT.read_text()


def test_lines_are_counted_up_to_a_limit_and_in_longer_files_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rank0.out"
    file.write_text("one\ntwo\nthree\nfour\n")
    monkeypatch.setattr(logs, "COUNTED", 8)
    assert [logs.Log(file, RANK, ["x"], "x", skipped).number(1) for skipped in (0, 4, 7, 8, 9)] == [2, 3, 3, 4, None]


def test_a_process_that_kit_ended_for_a_failed_rank_was_not_ended_from_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 93 got signal: 15\n"
    failed = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nKeyError: 3\n'
    run = run_directory(tmp_path / "run", {0: (failed, "1 node1 0\n")}, "", {"node1": ended, "node2": ended})
    show(str(run))
    said = capsys.readouterr().out
    assert first_cause(said) == "key-error" or "KeyError" in said
    assert "terminated" not in said and "something outside" not in said  # that is how every failure goes on
