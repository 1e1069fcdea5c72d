"""Read what torch says of ranks whose collectives differ.

With TORCH_DISTRIBUTED_DEBUG=DETAIL each rank compares its call with those of all others, and
names the first one that differs: torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kit.base import formats

_CALL = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\("
    r"SequenceNumber=(?P<number>\d+)[, ]*OpType=(?P<operation>\w+)"
    r"(?:, TensorShape=(?P<shape>\[[^\]\n]*\]), TensorDtypes=(?P<dtype>\w+))?"
)
_VERBS = {
    "operation": ("calls", "call"),
    "shape": ("has", "have"),
    "dtype": ("has", "have"),
    "number": ("is at its call", "are at their call"),
}


def difference(texts: Iterable[str]) -> str:
    """Return by what the ranks' calls differ: rank 3 has [10], ranks 0-2 have [12]."""
    calls = {int(call["rank"]): call for text in texts for call in _CALL.finditer(text)}
    for what, verbs in _VERBS.items():
        values = formats.by_value(
            {rank: calls[rank][what] or "no tensor" for rank in sorted(calls)}
        )
        if len(values) > 1:
            rarest_first = sorted(values.items(), key=lambda item: len(item[1]))
            return ", ".join(
                f"{formats.ranks_do(ranks, *verbs)} {value}" for value, ranks in rarest_first
            )
    return "the line says by what"
