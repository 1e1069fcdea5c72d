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
    cluster = config.get("ClusterName", "")
    mine = facts.accounts(cluster, patience_s) if _is_enforced(config) else None
    if mine is None:
        return None
    if account not in mine:
        fix = did_you_mean(account, sorted(mine), f"yours: {', '.join(sorted(mine))}")
        return Violation("account", f"you have no account '{account}' here", fix)
    names, allowed = [partition.name for partition in partitions], mine[account]
    if not names or not allowed or allowed & set(names):
        return None
    only = f"your account {account} is for {', '.join(sorted(allowed))} alone"
    problem = f"{only}, and the job asks for partition {','.join(names)}"
    return Violation("account", problem, _suggest(mine, names))


def doubt(account: str, partition: Partition) -> Optional[Violation]:
    """Return a warning if a partition does not name the account among its own."""
    if partition.accounts is None or account in partition.accounts:
        return None
    # Newer versions of Slurm also accept the accounts below those that are named.
    noun = "accounts" if len(partition.accounts) > 1 else "account"
    named = f"partition {partition.name} is for the {noun} {', '.join(partition.accounts)}"
    fix = f"write `account: {partition.accounts[0]}`, or name another partition; sbatch will tell"
    return Violation("account", f"{named}, and perhaps not for {account}", fix)


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
