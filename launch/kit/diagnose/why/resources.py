"""Lists the causes that lie with the memory and the files of a program."""

from __future__ import annotations

from kit.diagnose.why.cause import ANYWHERE, Cause, own_cause

LESS_MEMORY = (
    "this machine has too little memory for it: use fewer ranks or DataLoader workers, smaller "
    "batches, less cached data; the kernel's message: dmesg | grep -i oom"
)

MEMORY = (
    own_cause(
        "small-shm",
        "the shared memory (/dev/shm) is too small for the DataLoader's workers",
        "make it larger: `kit run` shares the host's; on a node, an administrator can mount it "
        "larger (mount -o remount,size=50% /dev/shm); or use num_workers=0, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        r"This might be caused by insufficient shared memory \(shm\)[^\n]*",
        r"killed by signal: Bus error[^\n]*",
        (
            r"unable to (?:write to file|allocate shared memory\(shm\) for file|mmap \d+ bytes "
            r"from file) </(?:torch_|dev/shm)[^\n]*"
        ),
        r"No space left on device[^\n]*/dev/shm[^\n]*",
        r"dev/shm[^\n]*No space left on device",
    ),
    Cause(
        "host-out-of-memory",
        "the node's memory ran out, or the job's share of it: the kernel killed a DataLoader "
        "worker",
        "ask for more memory: {again:--slurm mem=0} takes all memory of each node; or use fewer "
        "DataLoader workers (num_workers), less cached data",
        (r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed[^\n]*",),
        local_fix=LESS_MEMORY,
    ),
    own_cause(
        "gpu-out-of-memory",
        "the GPU's memory ran out",
        "use smaller batches, gradient accumulation or activation checkpointing; against "
        "fragmentation: {again:--env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True}; to see "
        "other processes on the GPU: nvidia-smi",
        r"(?:CUDA|HIP|XPU) out of memory\.?[^\n]*",
        r"(?:CUDA|HIP) error: out of memory[^\n]*",
        r"CUBLAS_STATUS_ALLOC_FAILED[^\n]*",
        r"Cuda failure (?:2 )?'out of memory'[^\n]*",
        exception_types=r"RuntimeError|torch\.|\w*OutOfMemoryError",
    ),
    Cause(
        "memory-error",
        "a single allocation was larger than the memory that is left",
        "look at the shape that the line names; load the data in pieces (numpy: mmap_mode='r'), or "
        "use smaller batches; or ask for more memory: {again:--slurm mem=0}",
        (
            r"MemoryError\b[^\n]*",
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)[^\n]*",
            r"std::bad_alloc[^\n]*",
            r"Cannot allocate memory[^\n]*",
        ),
        local_fix=(
            "look at the shape that the line names; load the data in pieces (numpy: "
            "mmap_mode='r'), or use smaller batches"
        ),
    ),
    own_cause(
        "too-many-processes",
        "no more processes or threads may be started",
        "use fewer DataLoader workers or threads ({again:--env OMP_NUM_THREADS=1}); to see the "
        "limit: ulimit -u",
        r"can't start new thread",
        r"BlockingIOError: \[Errno 11\][^\n]*",
        r"fork: (?:retry: )?Resource temporarily unavailable",
        r"pthread_create[^\n]*(?:failed|EAGAIN)[^\n]*",
    ),
    own_cause(
        "too-many-files",
        "too many files are open",
        "raise the limit (ulimit -n 65536 before the job, or LimitNOFILE of slurmd), or use "
        "torch.multiprocessing.set_sharing_strategy('file_system') or fewer workers",
        r"\[Errno 24\] Too many open files[^\n]*",
        r"Too many open files[^\n]*",
        r"received 0 items of ancdata",
    ),
)

FILES = (
    Cause(
        "disk-full",
        "a disk is full",
        "free some space (df -h {workdir} {folder}), or write elsewhere; the container's /tmp is "
        "in memory or on a small disk",
        (
            r"No space left on device[^\n]*",
            r"file write failed, expected \d+ bytes[^\n]*",
            r"PytorchStreamWriter failed[^\n]*",
            r"inline_container\.cc:\d+\][^\n]*unexpected pos[^\n]*",
        ),
        where=ANYWHERE,
        is_final=True,
    ),
    own_cause(
        "quota",
        "your disk quota is used up",
        "remove old checkpoints, or ask for more space; to see the quota: quota -s; lfs quota -h .",
        r"Disk quota exceeded[^\n]*",
        where=ANYWHERE,
    ),
    own_cause(
        "read-only",
        "the program tried to write to a read-only file system",
        "write to a folder that is mounted for writing: {again:--mount SOURCE:TARGET} (without "
        ":ro); an image itself is read-only",
        r"Read-only file system[^\n]*",
        where=ANYWHERE,
    ),
    Cause(
        "dataset-missing",
        "the data set is not there: {file}",
        "mount its folder ({again:--mount SOURCE:TARGET:ro}) and give the program the path "
        "inside the container; or fetch it before the job",
        (
            r"Dataset not found(?: or corrupted)?\.?[^\n]*",
            r"no (?P<file>\S+) in \S+ on \S+, and the download failed[^\n]*",
            r"Couldn't find any class folder in (?P<file>[^\n]*)",
        ),
        is_final=True,
    ),
    Cause(
        "program-missing",
        "the program is not there: {file}",
        "check `command` and `workdir` ({workdir}); {elsewhere}",
        (
            r"can't open file '(?P<file>[^'\n]*)': \[Errno 2\][^\n]*",
            r"line \d+: exec: (?P<file>[^:\n]*): not found$",
            (
                r"(?:bash|sh|env|line \d+): (?:line \d+: )?(?P<file>[^:\n]*): (?:No such file or "
                r"directory|command not found)$"
            ),
            (
                r"exec: \"(?P<file>[^\"\n]*)\": [^\n]*(?:executable file not found|no such file or "
                r"directory)[^\n]*"
            ),
        ),
        is_final=True,
    ),
    own_cause(
        "file-missing",
        "a file is not there: {file}",
        "{elsewhere}; relative paths start at {workdir}",
        r"FileNotFoundError: \[Errno 2\] [^\n']*'(?P<file>[^'\n]*)'[^\n]*",
        r"FileNotFoundError: (?P<file>[^\n]*)",
        r"NotADirectoryError: [^\n']*'(?P<file>[^'\n]*)'",
    ),
    Cause(
        "not-executable",
        "the program cannot be executed: {file}",
        "chmod +x it, and give it a first line such as #!/usr/bin/env bash; if it is for another "
        "kind of CPU (file {file}; uname -m), build it for this one",
        (
            (
                r"(?:line \d+|bash|sh|env): (?:line \d+: )?(?P<file>[^:\n]*): (?:cannot "
                r"execute[^\n]*|Permission denied|Is a directory)$"
            ),
            r"\[Errno 8\] Exec format error[^\n]*",
            r"Exec format error[^\n]*",
        ),
        codes=(126,),
        is_final=True,
    ),
    own_cause(
        "permission-denied",
        "you have no permission for a file or folder: {file}",
        "see who owns it: ls -ld {file}; write somewhere else, or have its mode changed",
        r"PermissionError: \[Errno 1?3?1?\][^\n']*'(?P<file>[^'\n]*)'[^\n]*",
        r"PermissionError: [^\n]*",
        r"(?P<file>/[^\s:]+): Permission denied",
        where=ANYWHERE,
    ),
    own_cause(
        "checkpoint-damaged",
        "a checkpoint is damaged, or was cut off while it was written",
        "start from the previous one; in the program, write to another name, then rename the file "
        "(os.replace), as train/cifar10.py does",
        r"PytorchStreamReader failed[^\n]*",
        r"PyTorchFileReader\([^\n]*\n(?: [^\n]*\n)?(?P<shown>(?:OSError|RuntimeError): [^\n]*)",
        r"_pickle\.UnpicklingError: (?!Weights only)[^\n]*",
        r"EOFError: Ran out of input",
        r"pickle data was truncated",
        r"Error while deserializing header[^\n]*",
    ),
    own_cause(
        "checkpoint-untrusted",
        "the checkpoint holds more than tensors, which torch.load refuses since 2.6",
        "if you trust the file, use torch.load(..., weights_only=False) or "
        "torch.serialization.add_safe_globals([...])",
        r"Weights only load failed[^\n]*",
    ),
    own_cause(
        "checkpoint-mismatch",
        "the checkpoint does not fit the model",
        "build the model with the same arguments as when it was saved; DDP adds `module.` to "
        "names, so save model.module.state_dict(); or use strict=False",
        r"Error\(s\) in loading state_dict for [^\n]*",
        r"Missing key\(s\) in state_dict[^\n]*",
        r"Unexpected key\(s\) in state_dict[^\n]*",
        r"loaded state dict [^\n]*(?:doesn't match|different number)[^\n]*",
    ),
)
