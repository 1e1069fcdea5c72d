"""Read from a rank's log which exception ended it, and whether another rank caused that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Optional

from kit.diagnose.hang import stacks
from kit.diagnose.why import launchers
from kit.diagnose.why.logs import DUMP, Log

BEGIN = "Traceback (most recent call last)"
# Stand between chained tracebacks: https://docs.python.org/3/library/traceback.html
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
# A rank writes these when others are gone or late; launch/scripts/lib/blame.awk has the same words.
OTHERS_GONE = re.compile(
    "Connection closed by|[Cc]onnection (was |likely )*(closed|reset)|Broken pipe"
    "|Connection refused|connectFullMesh failed|ncclRemoteError|Failed to recv, got 0 bytes"
    "|failed to recv|remote process exited|Watchdog caught collective|NCCL operations have failed"
    "|Heartbeat monitor timed out|[Ww]atchdog (got stuck|hang)"
    "|collective timeout|failed to pass monitoredBarrier"
    "|Timed out (waiting [0-9]+ms|after [0-9]+ seconds waiting|initializing process group)"
    "|wait timeout after"
    "|Application timeout caused pair closure|client socket has (timed out|failed)|Socket Timeout"
    "|JAX distributed service detected"
)
WATCHDOG = "Watchdog caught collective"  # of a time-out, before it aborts
# vLLM says this of the exception of another process of its own, whose traceback stands above,
# Hugging Face's datasets of the one that it has caught, and torch of clean-up after one that came
# before the ranks met.
_POINTS_ABOVE = re.compile(
    "See root cause above|stack trace ([(]?above[)]? )?for (the )?root cause"
    "|An error occurred while generating the dataset|Default process group has not been initialized"
)
_VLLM = re.compile(r"(^|/)vllm/")
# The program that is called, not an argument of another, such as pip; blame.awk has the same words.
LAUNCHER = re.compile(
    r"(Command '(.')?|/|=[^ ]* |-m', '|-m )(torchrun|torch[.]distributed[.](run|launch)"
    r"|accelerate([.]commands[.]launch)?|deepspeed)(', '| )"
)
_ACCELERATE = re.compile(r"(^|/)accelerate/commands/")
# An exception ends Python with 1.
_OTHER_END = re.compile(r"\(exitcode: (?!1\))|died with <Signals|exit status (?!1\.)")
_OF_C10D = re.compile(r"torch/distributed/(distributed_c10d|rendezvous)\.py$")
_OF_CONNECTION = re.compile("(Connection|BrokenPipe|Timeout)[A-Za-z]*Error$")
MESSAGE = 8  # lines to read of an exception's message after its first
GRAPH = 200  # of TensorFlow's, whose reason stands behind the stack of the operation
_OF_TORCH = re.compile(r"^(RuntimeError|torch\.|c10)|Dist[A-Za-z]*Error$|Rendezvous|^nccl")
_FRAME = re.compile(r'[\s>]*File "(.*)", line (\d+)(?:, in (.*))?$')  # > is loguru's
# Rich draws a box around a traceback, and writes the exception below it.
_BOX = ("│", "╰")
_BOXED_FRAME = re.compile(r"│ (/.*):(\d+) in ")
_BOXED_SOURCE = re.compile(r"│ ❱ *\d+ (.*)")
_TYPE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s|$)|$)")
# An exception without a traceback: sys.tracebacklimit = 0.
_ALONE = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:: .*)?$")
# Says nothing of whether the program went on; blame.awk has the same words.
NOISE = re.compile(
    r"[Ww]arning|^Terminated|^Killed|^Exception (ignored|raised from )|^[-+| 0-9]*$"
    r"|^terminate called |^  what\(\): |^frame #|^\[([WE][0-9 ]|WARN|ERROR)|^  warnings\.warn"
    r"|: line [0-9]+: +[0-9]+ Aborted "
)
_LOGGED = re.compile("ERROR|CRITICAL|Exception in thread")
_GROUP = re.compile(r"^\s*[|+] ?")
_IN_REPORT = re.compile("^  (?:traceback : )?")  # of torchrun, with what a process noted
# Ray puts the traceback of a task into the message of the exception that its caller gets.
_RAY_TASK = re.compile(r"ray\.exceptions\.RayTaskError\(|(?:\x1b\[\d+m)?ray::.* \(pid=")


class TracebackFrame(NamedTuple):
    file: str
    line: int
    source: str

    @property
    def is_users(self) -> bool:
        # Cython's frames have no folder: whose they are is unknown, but Python has called them.
        return not (stacks.INSTALLED.search(self.file) or self.file.endswith((".pyx", ".pxi")))


@dataclass(frozen=True)
class Raised:
    """One exception of a chain."""

    type: str  # with its module; empty where the line names none
    text: str  # its line and the further lines of its message
    index: int  # its line in the log
    begin: int  # the traceback's first line
    frames: tuple[TracebackFrame, ...]  # the innermost last

    @property
    def is_raised_by_user(self) -> bool:
        """Return True if the program itself wrote the message."""
        inner = self.frames[-1] if self.frames else None
        return inner is not None and inner.is_users and inner.source.startswith("raise ")

    @property
    def is_gone(self) -> bool:
        """Return True if torch raised it since other ranks were gone or late: blame.awk's GONE."""
        return bool(OTHERS_GONE.search(self.text) and _OF_TORCH.search(self.type))

    @property
    def is_gone_or_broken(self) -> bool:
        """Return True if a connection to a rank may be gone, too: blame.awk's BROKEN."""
        line = self.text.partition("\n")[0]  # other processes may have written the further ones
        is_of_connection = line == "EOFError" or _OF_CONNECTION.search(self.type)
        is_of_torch = self.type == "RuntimeError" or self.type.startswith("torch.")
        is_of_c10d = is_of_torch and self.frames and _OF_C10D.search(self.frames[-1].file)
        return bool(self.is_gone or is_of_connection or is_of_c10d or OTHERS_GONE.search(line))

    @property
    def points_above(self) -> bool:
        """Return True if it only says that the traceback before it shows the reason."""
        return self.is_of_launcher or bool(_POINTS_ABOVE.search(self.text))

    @property
    def is_of_launcher(self) -> bool:
        """Return True if what the program starts its processes by says that one has failed."""
        if self.type == "subprocess.CalledProcessError":
            is_of_accelerate = any(_ACCELERATE.search(frame.file) for frame in self.frames)
            return is_of_accelerate or bool(LAUNCHER.search(self.text))
        return self.type.endswith("ChildFailedError")  # of torchrun

    @property
    def is_of_vllm(self) -> bool:
        return any(_VLLM.search(frame.file) for frame in self.frames)

    def place(self, folder: str) -> str:
        """Return where the user's program stood: train.py:41 (in torch/nn/modules/linear.py:125).

        Paths are relative to `folder`. The part in brackets stands only where a package raised the
        exception. Empty where no frame is known.
        """
        if not self.frames:
            return ""
        inner = self.frames[-1]
        users = next((frame for frame in reversed(self.frames) if frame.is_users), inner)
        beneath = "" if users is inner else f" (in {stacks.short(inner.file, folder)}:{inner.line})"
        return f"{stacks.short(users.file, folder)}:{users.line}{beneath}"


@dataclass(frozen=True)
class End:
    """What the end of a log tells of the program's end."""

    # the last traceback's, behind those to which it points; the last one ended the program
    chain: tuple[Raised, ...] = ()
    is_last: bool = False  # nothing of weight follows the traceback
    is_logged: bool = False  # the program may have logged it and gone on
    is_late: bool = False  # a watchdog had spoken before

    def is_cause(self, code: Optional[int], pause_s: float = 0) -> bool:
        """Return True if the exception ended the program, which then leaves with code 1.

        `pause_s` is the time from the program's last output to its end: one that may only have been
        logged must be followed by the end.
        """
        if code == 134 and self.is_last and not (self.is_logged or self.is_late):
            # While Python ended for it, a watchdog of compiled code lost patience.
            return not self.chain[0].is_gone_or_broken
        return bool(self.chain) and code in (None, 1) and not (self.is_logged and pause_s > 0.9)


def of_log(log: Log) -> End:
    """Return the end of a rank's log; where several ranks wrote into it, of the one at fault.

    Of those whose last words are an exception, that is the one that torchrun saw fail first, else
    the first one; one that only misses others comes last.
    """
    lines, writers = log.text.split("\n"), log.writers
    last, ranks = read(lines), set(filter(None, writers))
    lost = launchers.lost(log.text) if len(ranks) > 1 else None
    is_killed = lost is not None and lost.code != 1  # an exception ends Python with 1
    raised = last.chain[-1] if last.chain else None
    is_of_program = raised and not (raised.is_of_launcher or writers[raised.begin])
    if len(ranks) < 2 or is_killed or is_of_program:
        return last
    found = []
    for rank in ranks:
        end = read([line if who == rank else "" for line, who in zip(lines, writers)])
        is_lost = lost is not None and rank in lost.names
        if end.chain and (end.is_last or is_lost):
            first = end.chain[0]
            found.append((first.is_gone_or_broken, not is_lost, first.begin, end))
    return min(found)[-1] if found else last


def read(lines: list[str]) -> End:
    """Return the last traceback of a log with those that it is chained to, or points to."""
    chain: list[Raised] = []
    own: list[Raised] = []  # the last one that no other rank may have caused
    is_logged = is_late = is_over = False
    after = 0  # lines of weight since the last exception
    before = ""  # the last line that is not empty
    index = 0
    while index < len(lines):
        line = lines[index]
        if not _begins_traceback(line):
            if line.strip() and not line.startswith(CHAINED):
                after += not (NOISE.search(line) or DUMP.match(line))
                is_over = is_over or WATCHDOG in line
            before = line if line.strip() else before
            index += 1
            continue
        in_report = bool(chain) and chain[-1].is_of_launcher and line.startswith("  ")
        raised = _read_block(lines, index, in_report)
        is_other_end = _OTHER_END.search(lines[index - 1] + raised.text)
        # Clean-up after a failure misses the others; its exception may be printed by itself.
        said = chain[-1].text.partition("\n")[0] if chain else None
        is_silent_since = before == said and not (after or is_logged)
        is_of_cleanup = is_silent_since and raised.is_gone
        if in_report:  # which names the root cause last
            is_needed = chain[0].is_gone_or_broken or chain[0].begin >= chain[-1].begin
            if is_needed and not line.startswith(f"  {BEGIN}"):
                chain = [raised, chain[-1]]
        elif chain and (before.startswith(CHAINED) or is_of_cleanup):
            chain.append(raised)
            after = 0
        elif chain and raised.is_of_launcher and not is_other_end:
            chain = [*(own or chain), raised]  # in one log with its processes
            after, is_logged = 0, False
        elif chain and raised.points_above and chain[-1].is_of_vllm:
            chain.append(raised)
            after, is_logged = 0, _is_logged(before, line)
        elif not before.startswith("Exception ignored"):
            chain, after, is_logged = [raised], 0, _is_logged(before, line)
            is_late = is_over
        own = own if not chain or is_logged or chain[0].is_gone_or_broken else chain
        before = lines[raised.index]
        index = max(index, raised.index + raised.text.count("\n")) + 1
    if not chain and (alone := _read_alone(lines)):
        return End((alone,), True)
    return End(tuple(chain), bool(chain) and not after, is_logged, is_late)


def _is_logged(before: str, title: str) -> bool:
    """Return True if a program may have logged the traceback with this title, and gone on."""
    return bool(_LOGGED.search(before) or _LOGGED.search(title))


def _begins_traceback(line: str) -> bool:
    """Return True for a traceback's title, or for a frame where the title is cut off."""
    if BEGIN in line or _RAY_TASK.match(line):
        return True
    return bool(_FRAME.match(line) and line.endswith(tuple("0123456789")))


def _read_alone(lines: list[str]) -> Optional[Raised]:
    """Return the exception without a traceback with which the log ends, if it does."""
    index = len(lines) - 1
    while index > 0 and NOISE.search(lines[index]):
        index -= 1
    return _raised(lines, index, index, ()) if lines and _ALONE.match(lines[index]) else None


def _read_block(lines: list[str], begin: int, in_report: bool) -> Raised:
    """Return the exception of the traceback that begins at this line."""
    first = lines[begin]
    is_boxed = first.lstrip().startswith("|") and BEGIN in first
    in_group = is_boxed or "Exception Group Traceback" in first
    margin = _IN_REPORT if in_report else _GROUP if in_group else None
    frames: list[TracebackFrame] = []
    index = begin
    for index in range(begin + (BEGIN in first), len(lines)):
        line = margin.sub("", lines[index]) if margin else lines[index]
        if line.startswith(BEGIN):
            frames.clear()  # of another process, which writes into the same log line by line
        elif found := _FRAME.match(line) or _BOXED_FRAME.match(line):
            frames.append(TracebackFrame(found[1], int(found[2]), ""))
        elif line.startswith(_BOX):
            if frames and (boxed := _BOXED_SOURCE.match(line)):
                frames[-1] = frames[-1]._replace(source=boxed[1].strip("│ "))
        elif line[:1].strip() and (frames or BEGIN not in line) and not _RAY_TASK.match(line):
            break
        elif frames and not frames[-1].source:
            frames[-1] = frames[-1]._replace(source=line.strip())
    return _raised(lines, begin, index, tuple(frames), margin)


def _raised(
    lines: list[str],
    begin: int,
    index: int,
    frames: tuple[TracebackFrame, ...],
    margin: Optional[re.Pattern[str]] = None,
) -> Raised:
    """Return the exception whose message begins at line `index`."""
    text = [margin.sub("", lines[index]) if margin else lines[index]]
    ends_message = ("[", "Terminated", "terminate called", "Exception ignored", *CHAINED)
    in_graph = text[0].endswith("Graph execution error:")
    for line in [] if margin else lines[index + 1 :][: GRAPH if in_graph else MESSAGE]:
        is_empty = not (line.strip() or in_graph)
        if is_empty or BEGIN in line or line.startswith(ends_message) or DUMP.match(line):
            break
        text.append(line)
        if in_graph and line.startswith("\t [["):
            break
    named = _TYPE.match(text[0])
    return Raised(named[1] if named else "", "\n".join(text), index, begin, frames)
