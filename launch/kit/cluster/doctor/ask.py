"""Ask every node in one short job for its facts, and have the nodes connect to each other."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Callable, Optional

from kit import slurm
from kit.base.errors import KitError
from kit.cluster.doctor import inquiry
from kit.cluster.doctor.inquiry import Inquiry, Node
from kit.slurm import gpu_request

START_S = 15  # for the other nodes, from the first node's first line
READY_S = 90  # for nodes that have begun: an image may start slowly, and nvidia-smi list slowly
CLOCK_S = 5
CONNECT_S = 20


class NoAnswer(KitError):
    """srun has ended without a word about a node."""


@dataclass
class Talk:
    """The exchange with the process that runs probe.sh on the nodes."""

    process: subprocess.Popen[bytes]
    job_name: str
    nodes: dict[str, Node]
    rest: bytes = b""
    errors: bytes = b""
    heard: bool = False
    # {node: (its time, when that arrived)}
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)

    def listen(self, enough: Callable[[], bool], until_s: float) -> bool:
        """Read until it is enough, the process ends, or `until_s`; return True if it was enough."""
        with selectors.DefaultSelector() as selector:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream
                selector.register(stream, selectors.EVENT_READ)
            while not enough() and selector.get_map():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    break
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
        """Add what the nodes printed to their facts."""
        self.heard = True
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for line in lines:
            node = inquiry.add(self.nodes, line.decode("utf-8", "replace"))
            if node and node.has("clock") and node.name not in self.clocks:
                with contextlib.suppress(ValueError):  # a `date` that does not know %N
                    self.clocks[node.name] = (float(node.one("clock")[0]), now_s)

    def say(self, line: str) -> None:
        """Write a line to all nodes."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    @property
    def start_s(self) -> int:
        return START_S + slurm.start_s(len(self.nodes))

    def all_are_ready(self, begun_s: float) -> bool:
        """Return True if all nodes answered; when they had time to start, if all that began did."""
        late = [node for node in self.nodes.values() if not node.answered]
        if time.monotonic() - begun_s > self.start_s:
            return not any(node.said for node in late)
        return not late

    def ready(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.answered]

    def end(self, patience_s: float) -> None:
        """Close the input, and end a process that does not end by itself."""
        assert self.process.stdin and self.process.stdout and self.process.stderr
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            # An srun that is killed while a node is dead leaves the job behind.
            slurm.cancel_by_name(self.job_name)
            slurm.end(self.process)
        self.process.stdout.close()
        self.process.stderr.close()


def all_at_once(
    command: list[str], nodes: dict[str, Node], options: dict[str, str], wait_s: float
) -> None:
    """Add what the nodes say to them. Raise KitError where the job does not start in `wait_s`."""
    # The name finds the job, should srun be gone.
    job_name = f"kit-doctor-{os.getpid()}-{time.time_ns()}"
    process = slurm.begin_on_nodes(list(nodes), command, {"job-name": job_name, **options})
    talk = Talk(process, job_name, nodes)
    try:
        until_s = time.monotonic() + wait_s
        heard = talk.listen(lambda: talk.heard, until_s)
        # A process that was silent before that time is about to end.
        if not heard and time.monotonic() >= until_s and process.poll() is None:
            raise _still_waiting(talk, wait_s)
        begun_s = time.monotonic()
        until_s = begun_s + READY_S + slurm.start_s(len(nodes))
        talk.listen(lambda: talk.all_are_ready(begun_s), until_s)
        # Where a task has not started, srun passes no input on: the caller asks the others again.
        if talk.ready() and not silent(nodes):
            _compare_clocks(talk, talk.ready())
            _connect(talk, talk.ready())
    except BaseException:
        slurm.cancel_by_name(job_name)
        process.terminate()
        raise
    finally:
        talk.end(patience_s=0 if silent(nodes) else 5)
    _explain(talk)


def _compare_clocks(talk: Talk, ready: list[Node]) -> None:
    """Set by how much each clock is off at least: its answer may have been on the way."""
    sent_s = time.time()
    talk.say("clock")
    talk.listen(lambda: all(node.name in talk.clocks for node in ready), time.monotonic() + CLOCK_S)
    for name, (own_s, arrived_s) in talk.clocks.items():
        ahead_s = own_s - arrived_s
        talk.nodes[name].skew_s = ahead_s if ahead_s > 0 else min(0.0, own_s - sent_s)


def _connect(talk: Talk, ready: list[Node]) -> None:
    """Have the nodes that are ready connect to each other."""
    ports = [
        f"{node.name}:{','.join(node.one('listener', 4)[1:])}"
        for node in ready
        if node.one("listener")[0] in ("perl", "none")
    ]
    talk.say(f"connect {' '.join(ports)}")
    until_s = time.monotonic() + CONNECT_S
    talk.listen(lambda: all(node.has("connected") for node in ready), until_s)


def _still_waiting(talk: Talk, wait_s: float) -> KitError:
    """Cancel the job, which got no nodes in time, and return why it waited."""
    reason = ""
    with contextlib.suppress(KitError):
        reason = slurm.why_waiting(talk.job_name)
        slurm.cancel_by_name(talk.job_name)
    because = f": {reason}" if reason else ""
    return KitError(
        f"the job that asks the nodes did not start within {wait_s:.0f} s{because}",
        "try again later, with fewer nodes (--nodes N, --nodelist), or with a longer --wait",
    )


def _explain(talk: Talk) -> None:
    """Set why nodes did not answer, by what srun wrote. Raise NoAnswer where it tells of none."""
    words = talk.errors.decode("utf-8", "replace")
    for node in talk.nodes.values():
        if not node.answered:
            unbegun = f"its task did not begin within {talk.start_s} s"
            unended = "it began, and did not finish"
            node.problem = _words_about(node.name, words) or (unended if node.said else unbegun)
    if not talk.ready() and not any(_words_about(name, words) for name in talk.nodes):
        lines = words.splitlines() or [f"srun ended with {talk.process.returncode}"]
        errors = [line for line in lines if "error" in line.lower()]
        raise NoAnswer(
            (errors or lines)[0].strip(),
            "check the partition and account: kit doctor --partition NAME, "
            "or the cluster's profile; sinfo; or ask fewer nodes: --nodes 8",
        )


def _words_about(name: str, words: str) -> Optional[str]:
    """Return srun's first line that names a node."""
    named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
    lines = [line for line in words.splitlines() if named.search(line)]
    return re.sub(r"^\S+: (error: )?", "", lines[0].strip()) if lines else None


def silent(nodes: dict[str, Node]) -> list[str]:
    """Return the nodes that said nothing, not even that their task has begun."""
    return [name for name, node in nodes.items() if not node.said]


def ask(cluster: Inquiry, addresses: dict[str, str], wait_s: float) -> None:
    """Add to the nodes with these addresses what they say of themselves."""
    nodes = {node.name: node for node in cluster.nodes if node.asked}
    asked = cluster.asked
    with _shared_file(asked.folder) as (mark, text):
        file = {"folder": asked.folder, "mark": mark, "text": text} if mark else {}
        while nodes:
            command = asked.command(file, *(f"{name}:{addresses[name]}" for name in nodes))
            try:
                all_at_once(command, nodes, asked.slurm, wait_s)
            except NoAnswer:
                gres = gpu_request.one_of_each(node.gres for node in nodes.values())
                if not gres:
                    raise
                _ask_with_gpus(command, nodes, gres, asked.slurm, wait_s)
            unheard = silent(nodes)
            if not unheard or len(unheard) == len(nodes):
                break
            # srun waits for all, so ask once more without them: the others are to try each other.
            nodes = {name: node for name, node in nodes.items() if name not in unheard}
            for node in nodes.values():
                node.said = {}


def _ask_with_gpus(
    command: list[str], nodes: dict[str, Node], gres: str, options: dict[str, str], wait_s: float
) -> None:
    """Ask the nodes of a site that takes no job without GPUs where there are some.

    If it also wants the type of the GPUs in every job, ask the nodes of each type by themselves.
    """
    of_type: dict[str, dict[str, Node]] = {}
    for node in nodes.values():
        of_type.setdefault(gpu_request.one_of_each([node.gres]), {})[node.name] = node
    try:
        all_at_once(command, nodes, {"gres": gres, **options}, wait_s)
    except NoAnswer:
        if len(of_type) == 1:
            raise
        for of_one, alike in of_type.items():
            all_at_once(command, alike, {"gres": of_one, **options}, wait_s)


@contextlib.contextmanager
def _shared_file(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of a file in the shared folder; both empty if none can be made."""
    name, text, is_written = "", f"{os.getpid()} {time.time_ns()}", False
    try:
        with contextlib.suppress(OSError):  # a check of the login node finds it
            handle, name = tempfile.mkstemp(prefix=".kit-doctor.", dir=folder)
            with os.fdopen(handle, "w") as file:
                file.write(text)
            is_written = True
        yield (name, text) if is_written else ("", "")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
