"""Reads the end of a rank's log: the exception that ended the program, and whether it only tells of other ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Optional

from kit.runs import stacks

BEGIN = "Traceback (most recent call last)"
# Between two that belong together: https://docs.python.org/3/library/traceback.html
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
# What a rank says when others are gone or late; launch/scripts/blame.sh has the same words.
GONE = re.compile(
    "Connection closed by|[Cc]onnection (was |likely )*(closed|reset)|Broken pipe|Connection refused|connectFullMesh failed|ncclRemoteError"
    "|Failed to recv, got 0 bytes|failed to recv|remote process exited|Watchdog caught collective|NCCL operations have failed"
    "|Heartbeat monitor timed out|collective timeout|failed to pass monitoredBarrier|Timed out waiting|Timed out after [0-9]+ seconds waiting"
    "|wait timeout after|Application timeout caused pair closure|client socket has (timed out|failed)|Socket Timeout"
)
MESSAGE = 8  # lines of an exception's message that are looked at, beside its first
_OF_TORCH = re.compile(r"^(RuntimeError|torch\.|c10)|Dist[A-Za-z]*Error$|Rendezvous|^nccl")
_BROKEN = re.compile("(Connection|BrokenPipe|Timeout)[A-Za-z]*Error$")
_WAITS = re.compile(r"torch/distributed/(distributed_c10d|rendezvous)\.py$")
_FRAME = re.compile(r'\s*File "(.*)", line (\d+)(?:, in (.*))?$')
_TYPE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s|$)|$)")
_ALONE = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:: .*)?$")  # without a traceback: sys.tracebacklimit = 0
_NOISE = re.compile(r"[Ww]arning|^Terminated|^Killed|^Exception ignored|^\s*$|^\[[WE]|^  warnings\.warn|^[-+| \d]+$")
_LOGGED = re.compile("ERROR|CRITICAL|Exception in thread")
_GROUP = re.compile(r"^\s*[|+] ?")


class Grade(IntEnum):
    """Whether a rank is the one at fault; the smallest of all ranks is, of equal ones the earliest."""

    OWN = 0
    DOUBTFUL = 1  # its own, but it spoke of other ranks before, or was ended meanwhile
    BROKEN = 2  # a connection, which may be to another rank
    GONE = 3  # it only missed other ranks


class Frame(NamedTuple):
    file: str
    line: int
    source: str

    @property
    def is_users(self) -> bool:
        return not stacks.INSTALLED.search(self.file)


@dataclass(frozen=True)
class Raised:
    """One exception of a chain."""

    type: str  # with its module; empty where its line is none
    text: str  # its line, and those of its message that follow
    index: int  # of its line in the log
    begin: int  # of the traceback
    frames: tuple[Frame, ...]  # the innermost last

    @property
    def is_raised_by_user(self) -> bool:
        """Whether the program itself wrote the message."""
        return bool(self.frames) and self.frames[-1].is_users and self.frames[-1].source.startswith("raise ")

    @property
    def grade(self) -> Grade:
        if GONE.search(self.text):
            return Grade.GONE if _OF_TORCH.search(self.type) else Grade.BROKEN
        if _BROKEN.search(self.type) or self.text == "EOFError":
            return Grade.BROKEN
        waits = self.frames and _WAITS.search(self.frames[-1].file)
        return Grade.BROKEN if waits and re.match(r"RuntimeError$|torch\.", self.type) else Grade.OWN

    def place(self, folder: str) -> str:
        """train.py:41, as from `folder`, or train.py:41 (in torch/nn/modules/linear.py:125); empty where no frame is known."""
        if not self.frames:
            return ""
        inner = self.frames[-1]
        users = next((frame for frame in reversed(self.frames) if frame.is_users), inner)
        beneath = "" if users is inner else f" (in {stacks.short(inner.file, folder)}:{inner.line})"
        return f"{stacks.short(users.file, folder)}:{users.line}{beneath}"


@dataclass(frozen=True)
class End:
    chain: tuple[Raised, ...] = ()  # of the last traceback, the one that ended the program last
    is_last: bool = False  # nothing of weight follows it
    is_logged: bool = False  # the program may have logged it, and gone on
    has_spoken: bool = False  # of other ranks, before it or without it
    blocks: tuple[tuple[int, int], ...] = ()  # of every traceback, its first line and that of the exception

    @property
    def grade(self) -> Grade:
        """Of the first exception of the chain: what clean-up makes of it may be anything."""
        return self.chain[0].grade if self.chain else Grade.OWN

    def is_cause(self, code: Optional[int], pause_s: float = 0) -> bool:
        """Whether the exception ended the program: with 1, `pause_s` seconds after its last words at most where it may be logged."""
        return bool(self.chain) and code in (None, 1) and not (self.is_logged and pause_s > 0.9)


def read(lines: list[str]) -> End:
    """The last traceback of a log, with those that it is chained to."""
    chain: list[Raised] = []
    blocks: list[tuple[int, int]] = []
    has_spoken = is_logged = False
    after = 0  # lines of weight since the last exception
    before = ""  # the last line that is not empty
    index = 0
    while index < len(lines):
        line = lines[index]
        in_group = "Exception Group Traceback" in line or (line.lstrip().startswith("|") and BEGIN in line)
        if BEGIN not in line and not (_FRAME.match(line) and line.endswith(tuple("0123456789"))):
            if line.strip() and not line.startswith(CHAINED):
                has_spoken = has_spoken or bool(GONE.search(line))
                after += not _NOISE.search(line)
            before = line if line.strip() else before
            index += 1
            continue
        raised = _block(lines, index, in_group)
        blocks.append((index, raised.index))
        if before.startswith("Exception ignored"):
            pass
        elif chain and before.startswith(CHAINED):
            chain.append(raised)
            after = 0
        else:
            has_spoken = has_spoken or any(GONE.search(earlier.text) for earlier in chain)
            chain, after, is_logged = [raised], 0, bool(_LOGGED.search(before))
        index = max(index, raised.index) + 1
        before = lines[raised.index]
        # The message's other lines are part of it.
        if "\n" in raised.text:
            index = raised.index + 1 + raised.text.count("\n")
    if not chain:
        alone = next((index for index in range(len(lines) - 1, -1, -1) if not _NOISE.search(lines[index])), 0)
        if lines and _ALONE.match(lines[alone]):
            return End((_raised(lines, alone, alone, ()),), True, False, has_spoken)
    return End(tuple(chain), bool(chain) and not after, is_logged, has_spoken, tuple(blocks))


def _block(lines: list[str], begin: int, in_group: bool) -> Raised:
    """The traceback that begins at that line."""
    frames: list[Frame] = []
    index = begin
    for index in range(begin + (BEGIN in lines[begin]), len(lines)):
        line = _GROUP.sub("", lines[index]) if in_group else lines[index]
        if found := _FRAME.match(line):
            frames.append(Frame(found[1], int(found[2]), ""))
        elif line[:1] not in (" ", "\t", ""):
            break
        elif frames and not frames[-1].source:
            frames[-1] = frames[-1]._replace(source=line.strip())
    return _raised(lines, begin, index, tuple(frames), in_group)


def _raised(lines: list[str], begin: int, index: int, frames: tuple[Frame, ...], in_group: bool = False) -> Raised:
    text = [_GROUP.sub("", lines[index]) if in_group else lines[index]]
    for line in [] if in_group else lines[index + 1 : index + 1 + MESSAGE]:
        if not line.strip() or BEGIN in line or line.startswith(("[", "Terminated", "Exception ignored", *CHAINED)):
            break
        text.append(line)
    named = _TYPE.match(text[0])
    return Raised(named[1] if named else "", "\n".join(text), index, begin, frames)
