"""Estimate where a job would start first, by Slurm's own estimates: sbatch --test-only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Callable, NamedTuple, Optional, Union

from kit import slurm
from kit.base.errors import KitError, UsageError
from kit.cluster import facts, shapes
from kit.cluster.facts import Partitions
from kit.cluster.shapes import Variant
from kit.plan.plan import Plan
from kit.runs import secret_file
from kit.slurm import reasons, sbatch_variables, sentences

MOST = 24  # calls to Slurm
AT_ONCE = 4
SHORTER = 4  # calls with half the time
SOON_S = 60
PATIENCE_S = 60.0


class EarliestStart(NamedTuple):
    variant: Variant
    at_s: float  # seconds since 1970
    nodes: str  # Slurm's list


class Estimates(NamedTuple):
    starts: list[EarliestStart]  # the soonest first
    refused: dict[str, list[str]]  # {reason: the variants that are not possible for it}
    not_asked: int  # variants
    partitions: list[str]


OnAnswer = Callable[[int, int], None]  # is told how many of how many answers came


def estimate(
    plan: Plan, partitions: Optional[str], *, other_shapes: bool, progress: OnAnswer
) -> Estimates:
    """Return when and where the job would start. Raise KitError if there is no Slurm.

    Nothing is submitted.
    """
    found = facts.ask()
    if plan.program.secrets:  # sbatch sends its environment even for an estimate
        secret_file.hide_from_children(plan.program.secrets)
    names = _partition_names(plan, found, partitions)
    asked = ((shapes.own(plan, found[name], named=False), found[name]) for name in names)
    is_ruled_out = any(shapes.violations(plan, *each) for each in asked)
    if is_ruled_out and facts.nodes_may_join(PATIENCE_S):
        found = {name: replace(each, complete=False) for name, each in found.items()}
    refused: dict[str, list[str]] = {}
    variants = _variants(plan, found, names, refused, other_shapes)
    starts = _drop_useless(_ask(plan, variants[:MOST], refused, progress))
    starts.sort(key=lambda start: (start.at_s, len(start.variant.options)))
    return Estimates(starts, refused, len(variants[MOST:]), names)


def _partition_names(plan: Plan, found: Partitions, wanted: Optional[str]) -> list[str]:
    """Return the wanted partitions, or all of them, the job's own first."""
    if wanted is None:
        own = (name for name in _own_partitions(plan, found) if name in found)
        return list(dict.fromkeys([*own, *found]))
    names = [name for name in wanted.split(",") if name]
    for name in names:
        if name not in found:
            raise UsageError(*facts.unknown(name, found), where="--partition")
    return names


def _own_partitions(plan: Plan, found: Partitions) -> list[str]:
    partition = sbatch_variables.complete(dict(plan.header)).get("partition")
    if partition:
        return partition.split(",")
    default = facts.default(found)
    return [default.name] if default else []


def _variants(
    plan: Plan,
    found: Partitions,
    names: list[str],
    refused: dict[str, list[str]],
    other_shapes: bool,
) -> list[Variant]:
    """Return the variants to ask about, the most important first.

    Those that the facts rule out are added to `refused`, by their reasons.
    """
    same_shape, short, other = [], [], []
    own = _own_partitions(plan, found)
    for name in names:
        partition = found[name]
        variant = shapes.own(plan, partition, named=[name] == own)
        if not partition.up:
            refused.setdefault("it starts no jobs at present", []).append(name)
            continue
        violations = shapes.violations(plan, variant, partition)
        for violation in violations:
            refused.setdefault(violation.reason, []).append(name)
        if not violations:
            same_shape.append(variant)
            short += [half for half in [shapes.shorter(variant)] if half]
        for shape in shapes.others(plan, variant) if other_shapes else []:
            # If jobs get whole nodes, parts of more nodes cost more.
            is_dear = partition.exclusive and shape.nodes > plan.layout.nodes
            if not is_dear and not shapes.violations(plan, shape, partition):
                other.append(shape)
    other.sort(key=lambda shape: shapes.distance(plan, shape))
    return [*same_shape, *short[:SHORTER], *other]


def _ask(
    plan: Plan, variants: list[Variant], refused: dict[str, list[str]], progress: OnAnswer
) -> list[EarliestStart]:
    def ask(variant: Variant) -> Union[EarliestStart, str]:
        try:
            answer = slurm.estimate(shapes.header(plan, variant))
        except KitError as error:
            return error.problem
        found = sentences.estimate(answer)
        return EarliestStart(variant, *found) if found else answer

    starts = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, (variant, found) in enumerate(zip(variants, pool.map(ask, variants)), 1):
            progress(number, len(variants))
            if isinstance(found, EarliestStart):
                starts.append(found)
            else:
                is_own = variant.nodes == plan.layout.nodes
                shape = "" if is_own else f" {variant.shape}"
                label = f"{variant.partition}{shape}"
                refused.setdefault(reasons.of_partition(found), []).append(label)
    return starts


def _drop_useless(starts: list[EarliestStart]) -> list[EarliestStart]:
    """Return the starts without those that come no sooner for their shorter time."""
    full = {}
    for start in starts:
        if "--time" not in start.variant.options:
            full[start.variant.partition, start.variant.shape] = start.at_s

    def helps(start: EarliestStart) -> bool:
        whole = full.get((start.variant.partition, start.variant.shape), float("inf"))
        return start.at_s < whole - SOON_S

    return [start for start in starts if "--time" not in start.variant.options or helps(start)]
