"""Count the GPUs that options of sbatch ask for, and those that nodes have, as Slurm does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

# In order of precedence: where several ask for GPUs, the first counts.
OPTIONS = ("gpus-per-node", "gres", "gpus-per-task", "tres-per-task", "gpus-per-socket", "gpus")
_PART = re.compile(r"\dg\.\d+gb")  # of a type such as a100_1g.10gb
LISTS = ("gres", "tres-per-task")  # they may have other things than GPUs


class GpuRequest(NamedTuple):
    option: str
    gpus: dict[str, int]  # {type: number} of a node, or of all nodes together
    of_all_nodes: bool

    @property
    def total(self) -> int:
        return sum(self.gpus.values())

    def of_node(self, nodes: int) -> int:
        """Return the number for each of so many nodes, rounded down."""
        return self.total // nodes if self.of_all_nodes else self.total


def read(options: Mapping[str, Optional[str]]) -> list[GpuRequest]:
    """Return what each of the options asks for, without those that name no GPU."""
    times = {
        "gpus-per-task": number(options, "ntasks-per-node"),
        "tres-per-task": number(options, "ntasks-per-node"),
        "gpus-per-socket": number(options, "sockets-per-node"),
    }
    found = []
    for name in OPTIONS:
        gpus = _by_type(name, options.get(name) or "")
        if gpus:
            each = {kind: count * times.get(name, 1) for kind, count in gpus.items()}
            found.append(GpuRequest(name, each, name == "gpus"))
    return found


def of_gres(gres: str) -> dict[str, int]:
    """Return {type: number} of what Slurm says that a node has: gpu:a100:4(S:0-1),gpu:2,nic:1."""
    return _by_type("gres", gres)


def has_parts(gres: str) -> bool:
    """Return whether some of a node's GPUs are parts of one (MIG)."""
    return any(map(is_part, of_gres(gres)))


def is_part(kind: str) -> bool:
    """Return whether GPUs of this type are parts of one (MIG)."""
    return _PART.search(kind) is not None


def one_of_each(gres: Iterable[str]) -> str:
    """Return the value of --gres for one GPU of each node; "" where a node has none.

    It names the type, as some sites demand, where all nodes have that type.
    """
    kinds = [next((kind for kind, count in of_gres(text).items() if count), None) for text in gres]
    if None in kinds or not kinds:
        return ""
    return f"gpu:{kinds[0]}:1" if kinds[0] and len({*kinds}) == 1 else "gpu:1"


def number(options: Mapping[str, Optional[str]], name: str, otherwise: int = 1) -> int:
    """Return the number of an option; `otherwise` where it has none."""
    value = options.get(name) or ""
    return int(value) if value.isdecimal() else otherwise


def _by_type(option: str, value: str) -> dict[str, int]:
    """Return {type: number} of `4`, `a100:4,h100:2` or, in a list, `gres/gpu:a100,nvme:1`.

    Slurm takes a type without a number for one GPU.
    """
    found: dict[str, int] = {}
    for part in filter(None, value.split(",")):
        name = re.sub("^gres[/:]", "", part) if option in LISTS else f"gpu:{part}"
        word, *rest = re.split("[:=]", name.partition("(")[0])
        if word == "gpu":
            count = int(rest.pop()) if rest and rest[-1].isdecimal() else 1
            kind = rest[0] if rest else ""
            found[kind] = found.get(kind, 0) + count
    return found
