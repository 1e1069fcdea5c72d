"""Lists the causes that show as the signal or the exit code of a process."""

from __future__ import annotations

from kit.diagnose.why.cause import ANYWHERE, BATCH, RANK, Cause, Weight

SIGNALS = (
    Cause(
        "illegal-instruction",
        "a program uses an instruction that this CPU does not have",
        "it was built for a newer CPU: build it on this one, or choose nodes of one kind: "
        "{again:--slurm constraint=NAME}; without this node: {again:--slurm exclude={node}}",
        (r"Illegal instruction[^\n]*", r"terminated with signal SIGILL[^\n]*"),
        weight=Weight.SIGNAL,
        codes=(132,),
        local_fix="it was built for a newer CPU: build it on this one",
        is_final=True,
    ),
    Cause(
        "segfault",
        "a program read or wrote memory that is not its own: a fault of compiled code",
        "see where: {again:--env PYTHONFAULTHANDLER=1}; extensions that were built for another "
        "torch or CUDA are the usual reason: build them in this image",
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
        "memory behind a mapped file went away: mostly /dev/shm is full, or a file on a disk "
        "that is gone or was cut off",
        "room in /dev/shm: df -h /dev/shm; and on the disk of what is memory-mapped; do not "
        "overwrite files that a job has mapped",
        (r"Bus error[^\n]*", r"terminated with signal SIGBUS[^\n]*"),
        weight=Weight.SIGNAL,
        codes=(135,),
        is_final=True,
    ),
    Cause(
        "killed",
        "a process was killed with SIGKILL: by the kernel if memory ran out "
        "(dmesg | grep -i oom), else by hand or an administrator",
        "see on the node which it was; if memory ran out: {again:--slurm mem=0} takes all of each "
        "node's, or fewer DataLoader workers, smaller batches; else start it again: {again}",
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
            "see which it was; if memory ran out: fewer ranks or DataLoader workers, smaller "
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
        "a program ended itself (SIGABRT): compiled code met what it cannot go on with",
        "the line before `terminate called` or the message above says why; with Python's part: "
        "{again:--env PYTHONFAULTHANDLER=1}",
        (r"terminate called after throwing[^\n]*",),
        weight=Weight.LAST,
        where=(RANK,),
        codes=(134,),
        is_final=True,
    ),
    Cause(
        "worker-died",
        "a DataLoader worker ended",
        "num_workers=0 shows its own error; memory that ran out is the usual reason: "
        "{again:--slurm mem=0}",
        (
            r"DataLoader worker [^\n]*exited unexpectedly[^\n]*",
            r"DataLoader worker [^\n]*killed by signal[^\n]*",
        ),
        weight=Weight.SIGNAL,
        where=(RANK,),
        local_fix=(
            "num_workers=0 shows its own error; memory that ran out is the usual reason: free -h"
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
