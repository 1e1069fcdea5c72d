"""Check what `kit run` needs on this machine, where there is no Slurm."""

from __future__ import annotations

from collections.abc import Iterator

from kit.cluster import probe
from kit.cluster.doctor import node_checks
from kit.cluster.doctor.checks import Found, check
from kit.cluster.doctor.container_checks import seen_tools
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.config import plugins

NAME = "here"
_SHARED = "bash scratch space disk mounts image program shm limits driver".split()


def examine(asked: Needs) -> Inquiry:
    """Return this machine as the only node, with what it says of itself."""
    said = probe.here(asked.command({"engines": "yes", "torch": "yes"}), NAME).said
    return Inquiry(asked, [Node(NAME, said)])


@check("runtimes", seen=seen_tools)
def runtimes(node: Node, cluster: Inquiry) -> Iterator[Found]:
    wanted = cluster.asked.runtime
    stopped = dict(words[:2] for words in node.all("stopped"))
    engines = [item.name for item in plugins.runtimes(local=True)]
    for item in plugins.runtimes():
        is_wanted = item.name == wanted
        fields = {"runtime": item.tool}
        if is_wanted and not node.tool(item.tool):
            problem = "unless-loaded" if cluster.asked.has_host_setup else "missing"
            yield Found(problem, f"{item.tool} is not on PATH", fields)
        elif item.name in stopped and (is_wanted or item.name == engines[0]):
            yield Found("needed" if is_wanted else "stopped", stopped[item.name], fields)
    if not wanted and not any(map(node.tool, plugins.tools())):
        yield Found("none", f"none of {', '.join(plugins.tools())}")


@check(
    "torch",
    seen=lambda node, _: node.one("torch")[0],
    matters=lambda cluster: not cluster.asked.job,
)
def torch(node: Node, _: Inquiry) -> Iterator[Found]:
    if not node.one("torch")[0]:
        yield Found("missing", "neither kit's own Python nor python3")


CHECKS = (runtimes, torch, *(item for item in node_checks.CHECKS if item.name in _SHARED))
