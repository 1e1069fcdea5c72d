"""kit when: in which partition and shape a job would start first, by Slurm's own estimates (sbatch --test-only). Nothing is submitted."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from typing import NamedTuple, Optional

from kit import console
from kit.errors import KitError, UsageError, did_you_mean
from kit.plan import Plan
from kit.site import facts, shapes, words
from kit.site.facts import Facts
from kit.site.shapes import Variant
from kit.slurm import sentences, texts

MOST = 24  # calls to Slurm
AT_ONCE = 4
SHORTER = 4  # of them, with half the time
SOON_S = 60
YEAR_S = 365 * texts.DAY_S

# What Slurm says, and what that means to who reads it.
REASONS = (
    ("Requested node configuration is not available", "it has no such nodes, or not as many"),
    ("Invalid account or account/partition combination", "your account may not use it"),
    ("not permitted to use this partition", "you may not use it"),
    ("Invalid generic resource", "it has no such GPUs"),
    ("time limit is invalid|PartitionTimeLimit", "it lets no job run for so long"),
    ("Invalid feature", "none of its nodes has the feature that the job wants"),
    ("invalid partition", "Slurm knows no such partition"),
    ("Invalid qos", "your QOS is not allowed there"),
    ("Memory specification", "its nodes have too little memory"),
    ("CPU count|More processors", "its nodes have too few CPUs"),
    ("limit|policy", "a limit of your account or QOS is in the way"),
)


class Start(NamedTuple):
    variant: Variant
    at_s: float  # seconds since 1970
    nodes: str  # Slurm's list


def show(plan: Plan, typed: list[str], partitions: Optional[str], *, other_shapes: bool) -> None:
    """Prints a table, the soonest first, and what cannot be. `typed`: the words after `kit when`. Raises KitError where there is no Slurm."""
    if name := os.environ.get("SBATCH_PARTITION"):
        raise UsageError(f"SBATCH_PARTITION is set, so that every job goes to {name}", "unset SBATCH_PARTITION")
    found = facts.ask()
    if plan.secrets:
        from kit import secret_values

        secret_values.hide_from_children(plan.secrets)  # sbatch sends its environment, for an estimate, too
    names = _names(plan, found, partitions)
    refused: dict[str, list[str]] = {}
    variants = _variants(plan, found, names, refused, other_shapes)
    starts = _worth_it(_ask(plan, variants[:MOST], refused))
    if starts:
        _show_table(sorted(starts, key=lambda start: (start.at_s, len(start.variant.options))), typed)
    if refused:
        print(("\n" if starts else "") + "not possible:")
        for reason, labels in refused.items():
            print(f"  {', '.join(dict.fromkeys(labels))}: {reason}")
    if variants[MOST:]:
        print(f"\n{len(variants) - MOST} more were not asked for; name the partitions of interest: --partition {','.join(names[:2])}")
    if not starts:
        raise KitError("Slurm would take the job in none of these", "see what there is: sinfo; or ask for less: kit when JOB --nodes 1 --time 01:00:00")


def _names(plan: Plan, found: Facts, wanted: Optional[str]) -> list[str]:
    """The partitions to ask about: those that are named, or all; the job's own first."""
    own = _own(plan, found)
    if wanted is None:
        return [*(name for name in own if name in found.partitions), *(name for name in found.partitions if name not in own)]
    names = [name for name in wanted.split(",") if name]
    for name in names:
        if name not in found.partitions:
            fix = did_you_mean(name, list(found.partitions), f"the partitions are {', '.join(found.partitions)}")
            raise UsageError(f"there is no partition '{name}' here", fix, where="--partition")
    return names


def _own(plan: Plan, found: Facts) -> list[str]:
    said = dict(plan.header).get("partition")
    return said.split(",") if said else [found.default.name] if found.default else []


def _variants(plan: Plan, found: Facts, names: list[str], refused: dict[str, list[str]], other_shapes: bool) -> list[Variant]:
    """What to ask about, the most important first; what the facts rule out is noted with its reason."""
    own_ones, short, other = [], [], []
    own = _own(plan, found)
    for name in names:
        partition = found.partitions[name]
        variant = shapes.own(plan, name, named=[name] == own)
        if not partition.up:
            refused.setdefault("it starts no jobs at present", []).append(name)
            continue
        if misfits := shapes.misfits(plan, variant, partition):
            for misfit in misfits:
                refused.setdefault(misfit.problem.replace(f"partition {name}", "it").replace("the nodes of it", "its nodes"), []).append(name)
        else:
            own_ones.append(variant)
            short += [half for half in [shapes.shorter(variant)] if half]
        if other_shapes:
            # Where jobs have whole nodes, parts of more of them cost more.
            allowed = [shape for shape in shapes.others(plan, variant) if not (partition.exclusive and shape.nodes > plan.nodes)]
            other += [shape for shape in allowed if not shapes.misfits(plan, shape, partition)]
    return [*own_ones, *short[:SHORTER], *sorted(other, key=lambda shape: shapes.distance(plan, shape))]


def _ask(plan: Plan, variants: list[Variant], refused: dict[str, list[str]]) -> list[Start]:
    from concurrent.futures import ThreadPoolExecutor

    from kit import slurm

    def ask(variant: Variant) -> object:
        try:
            return slurm.estimate(shapes.script(shapes.header(plan, variant)))
        except KitError as error:
            return error

    starts, terminal = [], sys.stderr.isatty()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, (variant, answer) in enumerate(zip(variants, pool.map(ask, variants)), 1):
            if terminal:
                console.draw(f"kit: asking Slurm, {number} of {len(variants)}")
            start = _read(variant, answer) if isinstance(answer, str) else None
            if start:
                starts.append(start)
            else:
                label = (
                    variant.partition
                    if variant.shape == f"{plan.nodes}x{plan.gpus_per_node or plan.processes_per_node}"
                    else f"{variant.partition} {variant.shape}"
                )
                refused.setdefault(_in_plain_words(str(answer)), []).append(label)
    if terminal:
        console.draw("")
    return starts


def _read(variant: Variant, answer: str) -> Optional[Start]:
    found = sentences.estimate(answer)
    return Start(variant, *found) if found else None


def _in_plain_words(answer: str) -> str:
    said = " ".join(re.sub(r"^kit: |\b(allocation failure|sbatch|Batch job submission failed): ", "", answer).split())
    plain = next((meaning for pattern, meaning in REASONS if re.search(pattern, said, re.IGNORECASE)), "")
    return f"{plain} ({said})" if plain else said or "Slurm said nothing"


def _worth_it(starts: list[Start]) -> list[Start]:
    """Without those whose shorter time gains nothing."""
    full = {(start.variant.partition, start.variant.shape): start.at_s for start in starts if "--time" not in start.variant.options}

    def helps(start: Start) -> bool:
        return start.at_s < full.get((start.variant.partition, start.variant.shape), float("inf")) - SOON_S

    return [start for start in starts if "--time" not in start.variant.options or helps(start)]


def _show_table(starts: list[Start], typed: list[str]) -> None:
    from kit import table

    now = time.time()
    shorter = any("--time" in start.variant.options for start in starts)
    what = "GPUS" if starts[0].variant.gpus else "PROCESSES"
    rows = [("START", "PARTITION", f"NODES x {what}", *(["TIME LIMIT"] if shorter else []), "WHERE", "TO SUBMIT IT SO")]
    for start in starts:
        variant = start.variant
        limit = [variant.time or ""] if shorter else []
        rows.append((_when(start.at_s, now), variant.partition, variant.shape, *limit, start.nodes, command(typed, variant.options)))
    table.show(rows)


def _when(at_s: float, now: float) -> str:
    """now, or: in 2 h 10 min (Sat 18:40). Behind a job without a time limit Slurm names a day in some hundred years."""
    if at_s <= now + SOON_S:
        return "now"
    if at_s > now + YEAR_S:
        return "nobody knows"
    date = "%a %H:%M" if at_s < now + 6 * texts.DAY_S else "%d %b %Y %H:%M"
    return f"in {words.duration(at_s - now)} ({time.strftime(date, time.localtime(at_s))})"


def command(typed: list[str], options: tuple[str, ...]) -> str:
    """`kit submit` with the words of a `kit when`, and these options in the place of theirs."""
    before, dashes, after = typed, [], []
    if "--" in typed:
        place = typed.index("--")
        before, dashes, after = typed[:place], ["--"], typed[place + 1 :]
    replaced = {"--partition"} | {name for name in options if name.startswith("-") and name != "--slurm"}
    if replaced & {"-j", "--nodes"}:
        replaced |= {"-j", "--nodes", "--processes-per-node", "--gpus-per-node"}
    return shlex.join(["kit", "submit", *_without(before, replaced), *options, *dashes, *after])


def _without(typed: list[str], names: set[str]) -> list[str]:
    kept: list[str] = []
    values = 0  # words to leave out still
    for word in typed:
        name, equals, _ = word.partition("=")
        if values:
            values -= 1
        elif name in names or (word.startswith("-j") and "-j" in names):
            values = 0 if equals or (word.startswith("-j") and word != "-j") else 1
        elif word not in ("--shapes", "--no-shapes"):
            kept.append(word)
    return kept
