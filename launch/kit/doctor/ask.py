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

START_S = 15  # for the others, from the first node's first line
READY_S = 60  # for those that have begun: an image may have to be started
CLOCK_S = 5
CONNECT_S = 20


@dataclass
class Talk:
    """With the process that runs doctor.sh on the nodes, by its input and output."""

    process: subprocess.Popen[bytes]
    job_name: str
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
                for key, _ in selector.select(min(left_s, 0.5)):
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

    def all_are_ready(self, begun_s: float) -> bool:
        late = [node for node in self.nodes.values() if not node.answered]
        return all(not node.said for node in late) if time.monotonic() - begun_s > START_S else not late

    def ready(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.answered]

    def end(self, patience_s: float) -> None:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            # An srun that is killed while a node is dead leaves the job behind.
            slurm.cancel_by_name(self.job_name)
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def all_at_once(command: list[str], nodes: dict[str, Node], options: dict[str, str], wait_s: float) -> None:
    """Fills in what the nodes say. Raises KitError where none does within `wait_s`, for the job waits."""
    job_name = f"kit-doctor-{os.getpid()}-{time.time_ns()}"  # by which it is found, should srun be gone
    process = slurm.begin_on_nodes(list(nodes), command, {"job-name": job_name, **options})
    talk = Talk(process, job_name, nodes)
    try:
        until_s = time.monotonic() + wait_s
        # Before that, it has said all that it will, and is about to end.
        if not talk.listen(lambda: talk.heard, until_s) and time.monotonic() >= until_s and process.poll() is None:
            raise _waits(talk, wait_s)
        begun_s = time.monotonic()
        talk.listen(lambda: talk.all_are_ready(begun_s), begun_s + READY_S)
        there = talk.ready()
        # Where a task has not started, srun hands on no input: they are asked again without that node.
        if there and not silent(nodes):
            _clocks(talk, there)
            ways = [f"{node.name}:{','.join(node.one('listener', 4)[1:])}" for node in there if node.one("listener")[0] in ("perl", "nc", "ncat", "none")]
            talk.say(f"connect {' '.join(ways)}")
            talk.listen(lambda: all(node.has("connected") for node in there), time.monotonic() + CONNECT_S)
    except BaseException:
        slurm.cancel_by_name(job_name)
        process.terminate()
        raise
    finally:
        talk.end(patience_s=0 if silent(nodes) else 5)
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
    reason = ""
    with contextlib.suppress(KitError):
        reason = slurm.why_waiting(talk.job_name)
        slurm.cancel_by_name(talk.job_name)
    return KitError(
        f"the job that looks into the nodes did not start within {wait_s:.0f} s{f': {reason}' if reason else ''}",
        "later; or fewer nodes: --nodes N, --nodelist; or --wait",
    )


def _explain(talk: Talk) -> None:
    """Gives those that did not answer what srun says of them."""
    said = talk.errors.decode("utf-8", "replace")
    for node in talk.nodes.values():
        if not node.answered:
            node.problem = _words_about(node.name, said) or (
                "it began, and did not come to an end" if node.said else f"its task did not begin within {START_S} s"
            )
    if not talk.ready() and not any(_words_about(name, said) for name in talk.nodes):
        words = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines() or [f"srun ended with {talk.process.returncode}"]
        raise KitError(words[0].strip(), "partition, account and the like: kit doctor --partition NAME, or the cluster's profile; sinfo")


def _words_about(name: str, said: str) -> Optional[str]:
    lines = [line for line in said.splitlines() if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", line)]
    return re.sub(r"^\S+: (error: )?", "", lines[0].strip()) if lines else None


def silent(nodes: dict[str, Node]) -> list[str]:
    """Those of which nothing was heard, not even that their task has begun."""
    return [name for name, node in nodes.items() if not node.said]
