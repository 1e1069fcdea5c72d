"""Has every node say its facts, in one short job, and lets them try each other when all are ready."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import time
from dataclasses import dataclass, field
from typing import Callable, Optional

from kit import slurm
from kit.doctor import facts
from kit.doctor.facts import Node
from kit.errors import KitError

READY_S = 60  # from the first node's first line: an image may have to be started
CLOCK_S = 5
CONNECT_S = 20


@dataclass
class Talk:
    """With the process that runs doctor.sh on the nodes, by its input and output."""

    process: subprocess.Popen[bytes]
    nodes: dict[str, Node]
    rest: bytes = b""
    errors: bytes = b""
    heard: bool = False
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)  # {node: (its time, when that arrived)}

    def listen(self, enough: Callable[[], bool], until_s: float) -> bool:
        """Reads until that is enough, or the process has said all, or the time is over; says whether it was enough."""
        with selectors.DefaultSelector() as selector:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream
                selector.register(stream, selectors.EVENT_READ)
            while not enough() and selector.get_map() and (left_s := until_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    chunk = os.read(key.fd, 65536)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self.process.stderr:
                        self.errors += chunk
                    else:
                        self._take(chunk, time.time())
        return enough()

    def _take(self, chunk: bytes, now_s: float) -> None:
        self.heard = True
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for line in lines:
            node = facts.add(self.nodes, line.decode("utf-8", "replace"))
            if node and node.has("clock") and node.name not in self.clocks:
                with contextlib.suppress(ValueError):  # a `date` that does not know %N
                    self.clocks[node.name] = (float(node.one("clock")[0]), now_s)

    def say(self, line: str) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def ready(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.answered]

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # which ends the job
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def all_at_once(process: subprocess.Popen[bytes], nodes: dict[str, Node], wait_s: float) -> None:
    """Fills in what the nodes say. Raises KitError where none does within `wait_s`, for the job waits."""
    talk = Talk(process, nodes)
    try:
        if not talk.listen(lambda: talk.heard, time.monotonic() + wait_s) and process.poll() is None:
            raise _waits(talk, wait_s)
        everybody = len(nodes)
        talk.listen(lambda: len(talk.ready()) == everybody, time.monotonic() + READY_S)
        there = talk.ready()
        if there:
            _clocks(talk, there)
            ways = [f"{node.name}:{','.join(node.one('listener', 4)[1:])}" for node in there if node.one("listener")[0] in ("perl", "nc", "ncat", "none")]
            talk.say(f"connect {' '.join(ways)}")
            talk.listen(lambda: all(node.has("connected") for node in there), time.monotonic() + CONNECT_S)
    except BaseException:
        process.terminate()
        raise
    finally:
        talk.end()
    _explain(talk)


def _clocks(talk: Talk, there: list[Node]) -> None:
    """How far each is off at least: what its way here may have taken is not counted."""
    sent_s = time.time()
    talk.say("clock")
    talk.listen(lambda: all(node.name in talk.clocks for node in there), time.monotonic() + CLOCK_S)
    for name, (own_s, arrived_s) in talk.clocks.items():
        talk.nodes[name].skew_s = own_s - arrived_s if own_s > arrived_s else min(0.0, own_s - sent_s)


def _waits(talk: Talk, wait_s: float) -> KitError:
    """The job got no nodes in time: why, and it is taken back."""
    talk.listen(lambda: False, time.monotonic() + 0.1)
    said = talk.errors.decode("utf-8", "replace")
    found = re.search(r"job (?:allocation )?(\d+) (?:queued|has been)", said)
    reason = ""
    if found:
        with contextlib.suppress(KitError):
            state = slurm.state(found[1])
            reason = f": {state.name} {state.reason}" if state else ""
            slurm.cancel(found[1])
    return KitError(f"the job that looks into the nodes did not start within {wait_s:.0f} s{reason}", "later; or fewer nodes: --nodes N, --nodelist; or --wait")


def _explain(talk: Talk) -> None:
    """Gives those that did not answer what srun says of them."""
    said = talk.errors.decode("utf-8", "replace")
    for node in talk.nodes.values():
        if not node.answered:
            node.problem = _words_about(node.name, said) or ("it began, and did not come to an end" if node.said else "nothing within its time")
    if not talk.ready() and not any(_words_about(name, said) for name in talk.nodes):
        words = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines() or [f"srun ended with {talk.process.returncode}"]
        raise KitError(words[0].strip(), "partition, account and the like: kit doctor --partition NAME, or the cluster's profile; sinfo")


def _words_about(name: str, said: str) -> Optional[str]:
    lines = [line for line in said.splitlines() if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line)]
    return re.sub(r"^\S+: (error: )?", "", lines[0].strip()) if lines else None


def failed_to_start(nodes: dict[str, Node]) -> list[str]:
    """Those for which srun gave up all: without them it may go well."""
    silent = [node.name for node in nodes.values() if not node.said]
    return [name for name in silent if "launch" in nodes[name].problem.lower() or "communication" in nodes[name].problem.lower()]
