"""Lists the causes that show as the signal or the exit code of a process."""

from __future__ import annotations

from kit.diagnose.why.cause import ANYWHERE, BATCH, RANK, Cause, Weight

SIGNALS = (
    Cause(
        "illegal-instruction",
        "a program uses an instruction that this CPU does not have",
        "it was built for a newer CPU: build it on this one, or choose nodes of one kind: "
        "{again:--slurm constraint=NAME}; to run without this node: {again:--slurm "
        "exclude={node}}",
        (r"Illegal instruction[^\n]*", r"terminated with signal SIGILL[^\n]*"),
        weight=Weight.SIGNAL,
        codes=(132,),
        local_fix="it was built for a newer CPU: build it on this one",
        is_final=True,
    ),
    Cause(
        "segfault",
        "a program read or wrote memory that is not its own: a fault of compiled code",
        "to see where: {again:--env PYTHONFAULTHANDLER=1}; usually, extensions were "
        "built for another torch or CUDA: build them in this image",
        (
            r"Fatal Python error: Segmentation fault",
            r"Segmentation fault[^\n]*",
            r"terminated with signal SIGSEGV[^\n]*",
        ),
        weight=Weight.SIGNAL,
        codes=(139,),
        is_final=True,
    ),
    Cause(
        "bus-error",
        "the memory of a mapped file is gone: mostly /dev/shm is full, or a file on disk was "
        "removed or cut off",
        "check the free space in /dev/shm (df -h /dev/shm) and on the disk of mapped files; do not "
        "overwrite files that a job has mapped",
        (r"Bus error[^\n]*", r"terminated with signal SIGBUS[^\n]*"),
        weight=Weight.SIGNAL,
        codes=(135,),
        is_final=True,
    ),
    Cause(
        "killed",
        "a process was killed with SIGKILL: by the kernel if memory ran out "
        "(dmesg | grep -i oom), else by a user or an administrator",
        "check on the node which it was; if memory ran out: {again:--slurm mem=0} takes all memory "
        "of each node, or use fewer DataLoader workers, smaller batches; else start it again: "
        "{again}",
        (
            r"error: (?P<node>[\w.-]+): tasks? [\d,-]+: Killed",
            r"terminated with signal SIGKILL[^\n]*",
            r"exitcode: -9\b[^\n]*",
            r"task ended with code 137\b",
        ),
        weight=Weight.SIGNAL,
        where=ANYWHERE,
        codes=(137,),
        local_fix=(
            "check which it was; if memory ran out: use fewer ranks or DataLoader workers, smaller "
            "batches, less cached data; else start it again: {again}"
        ),
    ),
    Cause(
        "file-too-large",
        "a file became larger than the limit",
        "see the limit: ulimit -f",
        (r"\[Errno 27\] File too large[^\n]*",),
        weight=Weight.SIGNAL,
        where=(RANK,),
        codes=(153,),
    ),
    Cause(
        "cpu-time",
        "a limit of CPU time was reached",
        "see the limit: ulimit -t",
        weight=Weight.SIGNAL,
        where=(),
        codes=(152,),
    ),
    Cause(
        "aborted",
        "a program ended itself (SIGABRT): compiled code met an error after which it cannot "
        "continue",
        "the line before `terminate called` or the message above says why; to see the Python "
        "stack, too: {again:--env PYTHONFAULTHANDLER=1}",
        (r"terminate called after throwing[^\n]*",),
        weight=Weight.LAST,
        where=(RANK,),
        codes=(134,),
        is_final=True,
    ),
    Cause(
        "worker-died",
        "a DataLoader worker ended",
        "to see its own error, use num_workers=0; the usual reason is that memory ran out: "
        "{again:--slurm mem=0}",
        (
            r"DataLoader worker [^\n]*exited unexpectedly[^\n]*",
            r"DataLoader worker [^\n]*killed by signal[^\n]*",
        ),
        weight=Weight.SIGNAL,
        where=(RANK,),
        local_fix=(
            "to see its own error, use num_workers=0; the usual reason is that memory ran out: "
            "free -h"
        ),
        is_final=True,
    ),
    Cause(
        "interrupted",
        "the program was interrupted (SIGINT)",
        "start it again: {again}",
        (r"^KeyboardInterrupt\b",),
        weight=Weight.SIGNAL,
        where=(RANK,),
        codes=(130,),
        is_final=True,
    ),
    Cause(
        "program-missing",
        "the program, or what it starts, is not there",
        "check `command`, PATH in the image, and `workdir` ({workdir})",
        weight=Weight.SIGNAL,
        where=(BATCH,),
        codes=(127,),
    ),
)
