"""The keys of a job file for bad days: ranks fail or hang, or the job is preempted."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Optional

from kit.config import keys, plugins, values

key = functools.partial(keys.key, panel="Bad days")


@dataclass(frozen=True)
class BadDays:
    """What a job does when something goes wrong."""

    max_restarts: Optional[int] = key(
        values.count_or_zero,
        "how often all ranks start again, in the same job, when one has failed [0]",
    )
    elastic: Optional[bool] = key(
        values.flag,
        "let torchrun itself start the ranks again, by its c10d rendezvous",
        belongs_to="max_restarts",
        asks_for="max_restarts: 3",
    )
    stall_timeout: Optional[int] = key(
        values.duration,
        "time without output, checkpoint or work of any rank after which the run counts as hanging"
        " [never]",
        "10m",
        other_names="stall_timeout_s hang_timeout watchdog",
    )
    on_stall: Optional[str] = key(
        values.Words(
            ("end", "report"),
            "end: end ranks that stand still; report: only keep where they stand",
        ),
        "if the run hangs: end its ranks, and start them again if max_restarts allows it; or "
        "report: only record where they are [end]",
        belongs_to="stall_timeout",
        asks_for="stall_timeout: 10m",
    )
    health: Optional[str] = key(
        values.health,
        "check each node before the ranks start: quick checks GPUs, disk and memory; or a program "
        "of the site that fails on a bad node [none]",
        "quick|FILE",
        other_names="health_check preflight",
        anchor=values.anchored_health,
    )
    ready_timeout_s: Optional[int] = key(
        values.count,
        "seconds within which all nodes must have their container; torchrun waits as long for "
        "nodes whose `setup` takes longer [1200]",
    )
    on_preempt: Optional[str] = key(
        values.line,
        "checkpoint: ask the ranks for a checkpoint in time, then start the job again; requeue: "
        "start it again without asking, for programs that handle no signal [none]",
        "NAME",
        choices=lambda: plugins.choices("preempt"),
    )
    checkpoint_s: Optional[int] = key(
        values.count,
        "seconds before the time limit at which the ranks are asked for a checkpoint, or the job"
        " goes back to the queue [120]",
        belongs_to="on_preempt",
        asks_for="on_preempt: checkpoint",
    )
    checkpoints: str = key(
        values.line,
        "the program's folder of checkpoints, relative to the working directory; a new file in it"
        " shows that the run makes progress",
        "DIR",
        other_names="checkpoint_dir checkpoint_folder ckpt_dir",
        belongs_to="on_preempt stall_timeout",
        asks_for="on_preempt: requeue",
        default="",
    )
    max_requeues: Optional[int] = key(
        values.count_or_zero,
        "how often the job may start again [as long as it makes progress]",
        belongs_to="on_preempt",
        asks_for="on_preempt: checkpoint",
    )
    resubmit: Optional[bool] = key(
        values.flag,
        "continue at once as a new job; most sites hold a requeued job for two minutes",
        belongs_to="on_preempt",
        asks_for="on_preempt: checkpoint",
    )
    share: Optional[str] = key(
        values.Words(
            ("group",),
            "group: the group of the run directory reads the logs, and may stop the run",
        ),
        "group: the run directory's group may read the logs and run.json, and may use kit"
        " checkpoint and kit stop [nobody]",
        option="--share-with",  # kit bench has a --share of its own
    )
