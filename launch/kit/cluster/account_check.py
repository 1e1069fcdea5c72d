"""Check the account of a job against the user's accounts and those of a partition."""

from __future__ import annotations

from typing import Optional

from kit.base.errors import did_you_mean
from kit.cluster import facts
from kit.cluster.facts import Partition
from kit.cluster.fits import Violation


def violation(account: str, partitions: list[Partition], patience_s: float) -> Optional[Violation]:
    """Return why the user may not submit with this account; None if that is not certain."""
    config = facts.config(patience_s)
    if not _is_enforced(config):
        return None
    mine = facts.accounts(config.get("ClusterName", ""), patience_s)
    names = [partition.name for partition in partitions]
    if mine is not None and account not in mine:
        fix = did_you_mean(account, sorted(mine), f"yours: {', '.join(sorted(mine))}")
        return Violation("account", f"you have no account '{account}' here", fix)
    allowed = mine.get(account) if mine else None
    if not mine or not allowed or not names or allowed & set(names):
        return None
    only = f"your account {account} is for {', '.join(sorted(allowed))} alone"
    problem = f"{only}, and the job asks for partition {','.join(names)}"
    return Violation("account", problem, _suggest(mine, names))


def doubt(account: str, partition: Partition) -> Optional[Violation]:
    """Return a warning if a partition does not name the account among its own."""
    if partition.accounts is None or account in partition.accounts:
        return None
    # Newer versions of Slurm also accept the accounts below those that are named.
    accounts = (
        f"account{'s' if len(partition.accounts) > 1 else ''} {', '.join(partition.accounts)}"
    )
    problem = f"partition {partition.name} is for the {accounts}, and perhaps not for {account}"
    fix = f"write `account: {partition.accounts[0]}`, or name another partition; sbatch will tell"
    return Violation("account", problem, fix)


def _suggest(mine: dict[str, set[str]], partitions: list[str]) -> str:
    suiting = sorted(
        name for name, allowed in mine.items() if not allowed or allowed & set(partitions)
    )
    if not suiting:
        return "name a partition that the account is for"
    more = f" (or {', '.join(suiting[1:])})" if suiting[1:] else ""
    return f"write `account: {suiting[0]}`{more}"


def _is_enforced(config: dict[str, str]) -> bool:
    """Return True if this Slurm refuses accounts that it does not know."""
    value = config.get("AccountingStorageEnforce", "").lower()
    return any(word in value for word in ("associations", "limits", "qos", "safe", "all"))
