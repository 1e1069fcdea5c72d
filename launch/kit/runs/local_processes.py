"""Find the processes of a run on this machine, and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.runs import run_dir
from kit.runs.history import Run
from kit.runs.run_record import RunRecord

GRACE_S = 12.0  # the stand-in srun gives the ranks ten
SIGN_S = 60.0  # between two signs of life of a run, for machines that do not see its processes
SILENT_S = 600.0  # after which it is lost to them


def identity() -> RunRecord:
    """Return what tells this process from all others that may look at its run."""
    own: RunRecord = {"host": os.uname().nodename, "machine": _machine(), "pid": os.getpid()}
    began = _began(os.getpid())
    return {**own, "began": began} if began else own


def _machine() -> str:
    """Return what names this machine from its boot on, and a container, which sees no others."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def elsewhere(record: RunRecord) -> str:
    """Return where a run was started, if that is not here: its processes are not seen then."""
    own = identity()
    host = record.get("host") or own["host"]
    machine = record.get("machine")
    if machine == own["machine"] if machine else host == own["host"]:
        return ""  # a laptop's hostname may change with its network
    if host != own["host"]:
        return host
    return f"{host} before its last boot, or on another machine or container of that name"


def has_kit(record: RunRecord) -> bool:
    """Return whether the kit that started a run still lives, as far as this machine sees.

    A process of that number that began at another time is another one.
    """
    began = record.get("began")
    return bool(began) and not elsewhere(record) and _began(record.get("pid", 0)) == began


def _began(process: int) -> Optional[int]:
    """Return when a process began, in ticks that no clock changes; None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, *numbers = _stat(process)
        if state not in ("Z", "X"):
            return int(numbers[18])
    return None


def _stat(process: int) -> list[str]:
    """Return the fields of proc_pid_stat(5), from the state of the process on."""
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()


def shown_gpus(run: Run) -> dict[str, str]:
    """Return the variables by which the shell that started a run has chosen its GPUs."""
    record = run_dir.read_record(Path(run.folder))
    with contextlib.suppress(OSError):
        if has_kit(record):
            entries = Path(f"/proc/{record['pid']}/environ").read_bytes().split(b"\0")
            pairs = (os.fsdecode(entry).partition("=")[::2] for entry in entries)
            return {name: value for name, value in pairs if name in slurm.GPU_CHOICE}
    return {}


def find(job_id: str) -> list[int]:
    """Return the processes of a run: its batch script, and all others with that environment."""
    named = {b"SLURM_JOB_ID=" + job_id.partition("_")[0].encode(), b"KIT_LOOPBACK=1"}
    return [process for process, values in read_all("environ") if named <= values]


def read_all(file: str) -> Iterator[tuple[int, set[bytes]]]:
    """Yield each process with what one of its files in proc(5) holds, which NUL separates."""
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            yield int(path.parent.name), set(path.read_bytes().split(b"\0"))


def batch_scripts(job_id: str) -> list[int]:
    """Return the batch script of a run, if it lives."""
    return [process for process in find(job_id) if _leads(process)]


def end(job_id: str) -> None:
    """End the processes of a run that still live.

    First ask the batch script, as kit does; without one, the stand-in srun; then kill all of them.
    """
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        end_s = time.monotonic() + patience_s
        asked: set[int] = set()
        while (left := find(job_id)) and time.monotonic() < end_s:
            leaders = [process for process in left if _leads(process)]
            others = [process for process in left if not _is_rank(process)]
            first = [process for process in leaders or others or left if process not in asked]
            for process in first if number == signal.SIGTERM else left:
                asked.add(process)
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if process in leaders else os.kill)(process, number)
            time.sleep(0.1)


def cancel(run: Run) -> bool:
    """End a run on this machine, and return whether its kit has ended.

    Ask that kit first, whose terminal may be gone; end the remaining processes without it.
    """
    record = run_dir.load_sound(Path(run.folder))
    end_s = time.monotonic() + 2 * GRACE_S
    is_asked = False
    while has_kit(record) and time.monotonic() < end_s:
        # The script's parent is kit, and no other process of that number.
        if not is_asked and any(_parent(process) == record["pid"] for process in find(run.id)):
            is_asked = True
            with contextlib.suppress(ProcessLookupError):
                for number in (signal.SIGTERM, signal.SIGCONT):  # it may have been stopped: Ctrl-Z
                    os.kill(record["pid"], number)
        time.sleep(0.1)
    end(run.id)
    end_s = time.monotonic() + 2  # it notes the end
    while has_kit(record) and time.monotonic() < end_s:
        time.sleep(0.1)
    return not has_kit(record)


def _leads(process: int) -> bool:
    """Return whether a process is a batch script, which leads a session; ranks lead one, too."""
    try:
        return not _is_rank(process) and os.getsid(process) == process
    except OSError:
        return False


def _is_rank(process: int) -> bool:
    try:
        return b"\0SLURM_PROCID=" in b"\0" + Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def _parent(process: int) -> Optional[int]:
    try:
        return int(_stat(process)[1])
    except (OSError, IndexError):
        return None
