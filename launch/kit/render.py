"""Plan -> {file name: text}. The scripts are launch/scripts as they stand, put together; values are only in env.sh."""

from __future__ import annotations

import functools
import re
from typing import Callable

from kit import assets, plugins, rundir, snapshot
from kit.plan import Plan
from kit.quote import bash, sbatch

_VARIABLE = re.compile(r"\$\{\w+\}")


def render(plan: Plan) -> dict[str, str]:
    """The three scripts of a run directory, in the order in which they are read; and one more where a module is started."""
    starter = {snapshot.STARTER: assets.part(snapshot.STARTER)} if plan.code and plan.code.is_module else {}
    return {
        "env.sh": _env(plan),
        "run_script.sh": _with_header(_script("run_script.sh", plan), plan),
        f"{plan.launcher}.sh": _script(f"launchers/{plan.launcher}.sh", plan),
        **starter,
    }


def _script(name: str, plan: Plan) -> str:
    """A script with the files that it sources, and those that these source, in their places."""
    chosen = {
        "${KIT_RUNTIME}": plan.runtime,
        "${KIT_STAGE}": plan.stage,
        "${KIT_ON_PREEMPT}": plan.on_preempt,
        "${KIT_NODES}": "good" if plan.spares else "all",
    }

    def sourced(match: re.Match[str]) -> str:
        return _script(_VARIABLE.sub(lambda variable: chosen[variable[0]], match[1]), plan)

    return assets.SOURCED.sub(sourced, assets.part(name))


def _with_header(script: str, plan: Plan) -> str:
    shebang, rest = script.split("\n", 1)
    lines = [f"#SBATCH --{option}" + ("" if value is None else f"={sbatch(value)}") for option, value in plan.header]
    return "\n".join([shebang, *lines, "#", rest])


def _preempt(plan: Plan) -> str:
    if plan.on_preempt == "none":
        return ""
    most = "" if plan.max_requeues is None else plan.max_requeues
    return f"""\
KIT_CHECKPOINT_S={plan.checkpoint_s} # before the time limit, when the ranks are asked for a checkpoint; the #SBATCH lines say it, too
KIT_MAX_REQUEUES={most} # empty: as long as the run makes progress
"""


def _bad_nodes(plan: Plan) -> str:
    return f"KIT_BAD_NODES={bash(plan.bad_nodes)} # where they are remembered\n" if plan.spares else ""


def _env(plan: Plan) -> str:
    launcher = plugins.find("launchers", plan.launcher, "")
    sweep = ""
    if plan.sweep:
        from kit import sweeps

        sweep = sweeps.environment(plan.sweep)
    command, variables = words(plan, rundir.around)
    mounts = "".join(f"\n  {bash(mount.source)} {bash(mount.target)} {'ro' if mount.read_only else 'rw'}" for mount in plan.mounts)
    secrets = f"KIT_SECRETS='{' '.join(secret.name for secret in plan.secrets)}' # the values are not here: docs/secrets.md\n" if plan.secrets else ""
    code = f'"${{KIT_RUN_DIR}}"/{snapshot.FOLDER} # frozen at submission; first on PYTHONPATH' if plan.code else ""
    return f"""\
# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts beside this file use these variables
# shellcheck disable=SC1003,SC2016,SC2191  # values are data: what looks like code inside the quotes is not
# env.sh - every value of this run; the other scripts hold none. Edit it and submit again: sbatch run_script.sh

NNODES={plan.nodes}
NPROC_PER_NODE={plan.processes_per_node}
KIT_MAX_RESTARTS={plan.max_restarts} # by torchrun, of all ranks, when one fails
KIT_GPUS_PER_NODE={plan.gpus_per_node} # for a check; the #SBATCH lines ask for them

KIT_SPARES={plan.spares} # nodes that are allocated beyond NNODES, to do without bad ones
KIT_NODES={"good" if plan.spares else "all"}
{_bad_nodes(plan)}KIT_NAME={bash(plan.name)}
KIT_LAUNCHER={plan.launcher}
KIT_TASKS_PER_NODE={plan.tasks_per_node} # Slurm's tasks; the launcher starts the ranks
KIT_CPU_BIND={" ".join(launcher.words("cpu-bind")) or "none"}
KIT_MPI={"yes" if launcher.words("mpi") else ""} # whether Slurm tells MPI programs their ranks
KIT_NEEDS_ADDRESSES={"yes" if plan.max_restarts or launcher.words("addresses") else ""} # of all nodes, not the first one's alone
KIT_RUNTIME={plan.runtime}
KIT_IMAGE={bash(plan.image or "")}
KIT_SUBMITTED_FINGERPRINT={bash(plan.fingerprint or "")} # no other image is started; empty: whatever is there
KIT_SUBMITTED_SHA256={bash(plan.image_sha256 or "")} # of a file of kit build, where nodes copy it; empty: whatever it is
KIT_REMAP_ROOT={"yes" if plan.remap_root else ""}
KIT_STAGE={plan.stage}
KIT_ON_PREEMPT={plan.on_preempt}
{_preempt(plan)}KIT_SCRATCH={bash(plan.scratch)}
KIT_READY_TIMEOUT_S={plan.ready_timeout_s} # for all nodes to have their container
KIT_WORKDIR={bash(plan.workdir)}

# source, target, rw or ro
KIT_MOUNTS=({mounts}
)

{sweep}KIT_CODE={code}
{command}
# The job's own variables; set inside the container, last, so that no image wins over them.
{variables}{secrets}"""


def words(plan: Plan, around: Callable[[str, str], list[str]]) -> tuple[str, str]:
    """The lines of the command and of the job's variables.

    `around` says what of a word is around the run directory, which goes by its variable, so that it may be moved.
    """
    quoted = bash
    if plan.sweep:
        from kit import sweeps

        quoted = functools.partial(sweeps.word, table=plan.sweep)

    def word(value: str) -> str:
        parts = around(value, plan.run_dir)
        return '"${KIT_RUN_DIR}"'.join(quoted(part) if part or len(parts) == 1 else "" for part in parts)

    command = " ".join(word(value) for value in plan.command)
    variables = "".join(f"\n  {name}={word(value)}" for name, value in plan.env)
    return f"KIT_COMMAND=({command})\n", f"KIT_ENV=({variables}\n)\n"
