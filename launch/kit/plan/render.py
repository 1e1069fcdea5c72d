"""Plan -> {path: text}. The scripts are launch/scripts as they stand; values are only in env.sh."""

from __future__ import annotations

import re

from kit.base import assets
from kit.base.quote import bash, bash_array, sbatch_lines
from kit.config import plugins
from kit.plan import run_paths, sweep_table
from kit.plan.plan import Container, Plan

# How a script names a file of lib/; the name may hold variables of env.sh.
_NAMED = re.compile(r"\"\$\{KIT_RUN_DIR\}/(lib/[^\"]+)\"")
# At the head of a file of lib/: what a run must have to need it, all of it if there are more lines.
_ONLY = re.compile(r"^# only: (.+)$", re.MULTILINE)
_VALUE = re.compile(r"^(\w+)=(\S*)", re.MULTILINE)
# A whole path begins where a word does, or behind what separates paths and values in one.
_SEPARATORS = r"""\s=:,;"'()\[\]{}|<>@"""
_HEAD = [
    "# shellcheck shell=bash",
    "# shellcheck disable=SC2034  # the scripts beside this file use these variables",
    "# shellcheck disable=SC1003,SC2016,SC2088,SC2191  "
    "# values are data: what looks like code inside the quotes is not",
    "# env.sh - every value of this run; the other scripts hold none. "
    "Edit it and submit again: sbatch run_script.sh",
    "",
]


def render(plan: Plan) -> dict[str, str]:
    """Return the files of a run directory: the scripts as they are read, then lib/."""
    launcher = plan.program.launcher
    shebang, rest = assets.part(run_paths.SCRIPT).split("\n", 1)
    env = [*_HEAD, *_shape(plan), *_image(plan.container), *_policy(plan), *_program(plan)]
    scripts = {
        run_paths.ENV: "\n".join(env),
        run_paths.SCRIPT: "\n".join([shebang, *sbatch_lines(plan.header), "#", rest]),
        f"{launcher}.sh": assets.part(f"launchers/{launcher}.sh"),
    }
    if plan.program.code and plan.program.code.is_module:
        scripts[run_paths.STARTER] = assets.part(run_paths.STARTER)
    for key, name in run_paths.LINES.items():
        if lines := getattr(plan.program, key):
            scripts[name] = lines
    return {**scripts, **_library(scripts)}


def _library(scripts: dict[str, str]) -> dict[str, str]:
    """Return the files of lib/ that the run needs: the scripts name them, or one another."""
    values = {**dict.fromkeys(scripts, "yes"), **dict(_VALUE.findall(scripts[run_paths.ENV]))}
    found: dict[str, str] = {}
    own = run_paths.LINES.values()  # the job's own lines, which name what they like
    texts = [text for name, text in scripts.items() if name not in own]
    if run_paths.LINES["script"] in scripts:  # it is the command
        texts.append(f'"${{KIT_RUN_DIR}}/{run_paths.OWN_LINES}"')
    for text in texts:  # which grows meanwhile
        for name in _NAMED.findall(text):
            name = re.sub(r"\$\{(\w+)\}", lambda variable: values[variable[1]], name)
            if name in found:
                continue
            # The runtimes, stages and kinds of preemption lie beside launch/scripts/lib.
            part = assets.part(name if name.count("/") == 1 else name[len("lib/") :])
            needs = [line.split() for line in _ONLY.findall(part)]
            if all(any(_holds(condition, values) for condition in either) for either in needs):
                found[name] = part
                texts.append(part)
    return dict(sorted(found.items()))


def _holds(condition: str, values: dict[str, str]) -> bool:
    """Return True if env.sh has that X=VALUE, X!=VALUE or an X but 0, or the run that file."""
    name, sign, value = re.split("(!=|=|$)", condition, maxsplit=1)
    found = values.get(name, "")
    if sign == "!=":
        return found != value
    return found == value if sign else found not in ("", "''", "0")


# ---------------------------------------------------------------- env.sh


def _when(wanted: object, *lines: str) -> tuple[str, ...]:
    return lines if wanted else ()


def _flag(value: object) -> str:
    return "yes" if value else ""


def _shape(plan: Plan) -> list[str]:
    layout, policy, health = plan.layout, plan.policy, plan.policy.health
    launcher = plugins.find("launchers", plan.program.launcher, "")
    addresses = policy.elastic or launcher.words("addresses")
    return [
        f"NNODES={layout.nodes}",
        f"NPROC_PER_NODE={layout.processes_per_node}",
        f"KIT_MAX_RESTARTS={policy.max_restarts} # how often all ranks start again",
        f"KIT_ELASTIC={_flag(policy.elastic)} # whether torchrun itself does that",
        f"KIT_GPUS_PER_NODE={layout.gpus_per_node} # to check; the #SBATCH lines request them",
        "",
        f"KIT_SPARES={layout.spares} # extra nodes beyond NNODES, to start without bad ones",
        *_when(
            layout.spares or health,
            f"KIT_BAD_NODES={bash(plan.profile.bad_nodes)} # the list of bad nodes",
        ),
        *_when(health, f"KIT_HEALTH={bash(health)} # checks each node at the start"),
        *_when(
            # The nodes tell the first one, while the ranks run, that they live.
            policy.stall_s or (policy.max_restarts and not policy.elastic),
            f"KIT_LEAST_NODES={layout.least or layout.nodes} "
            "# enough nodes to continue when one is lost",
        ),
        f"KIT_NAME={bash(layout.name)}",
        f"KIT_LAUNCHER={launcher.name}",
        f"KIT_TASKS_PER_NODE={layout.tasks_per_node} "
        "# Slurm's tasks; the launcher starts the ranks",
        f"KIT_CPU_BIND={' '.join(launcher.words('cpu-bind')) or 'none'}",
        f"KIT_MPI={_flag(launcher.words('mpi'))} # whether Slurm tells MPI programs their ranks",
        f"KIT_NEEDS_ADDRESSES={_flag(addresses)} # of all nodes, not only of the first",
    ]


def _image(container: Container) -> list[str]:
    packages = container.packages
    return [
        f"KIT_RUNTIME={container.runtime}",
        *image(container),
        f"KIT_REMAP_ROOT={_flag(container.remap_root)}",
        f"KIT_STAGE={container.stage}",
        *_when(container.cache, f"KIT_CACHE={container.cache} # of compilers"),
        *_when(
            packages.requirements,
            f"KIT_PACKAGES={bash(packages.file)} # Python packages: docs/packages.md",
            f"KIT_PACKAGES_SHA256={packages.sha256}",
            f"KIT_PACKAGES_BYTES={packages.bytes} # once they are unpacked",
        ),
        *_when(
            container.unpack,
            f"KIT_UNPACK={container.unpack} # the image; or mount it; auto: each node chooses",
        ),
    ]


def _policy(plan: Plan) -> list[str]:
    policy, notify = plan.policy, plan.policy.notify
    max_requeues = "" if policy.max_requeues is None else policy.max_requeues
    return [
        f"KIT_ON_PREEMPT={policy.on_preempt}",
        *_when(
            policy.on_preempt != "none",
            f"KIT_CHECKPOINT_S={policy.checkpoint_s} # before the time limit, "
            "to ask the ranks for a checkpoint; also in the #SBATCH lines",
            f"KIT_MAX_REQUEUES={max_requeues} # empty: as long as the run makes progress",
            *_when(policy.resubmit, "KIT_RESUBMIT=yes # the run continues as a new job"),
        ),
        f"KIT_SCRATCH={bash(plan.profile.scratch)}",
        f"KIT_READY_TIMEOUT_S={policy.ready_timeout_s} # until all nodes must have their container",
        *_when(
            policy.stall_s,
            f"KIT_STALL_S={policy.stall_s} # without progress, before the run counts as hanging",
            f"KIT_ON_STALL={policy.on_stall}",
        ),
        *_when(policy.share, f"KIT_SHARE={policy.share} # who may read the logs, and stop it"),
        f"KIT_WORKDIR={bash(plan.program.workdir)}",
        *_when(
            notify.on,
            f"KIT_NOTIFY='{' '.join(notify.on)}' # when to send messages: docs/notify.md",
            f"KIT_NOTIFY_WEBHOOK={notify.webhook} # the secret that has the web hook's address",
            f"KIT_NOTIFY_COMMAND={bash_array(list(notify.command))} "
            "# runs beside this script, on the first node",
        ),
    ]


def _program(plan: Plan) -> list[str]:
    program, sweep = plan.program, plan.program.sweep
    code = f'"${{KIT_RUN_DIR}}"/{run_paths.CODE} # frozen at submission; first on PYTHONPATH'
    checkpoints = sweep_table.word(plan.policy.checkpoints, sweep)
    names = " ".join(secret.name for secret in program.secrets)
    secrets = f"KIT_SECRETS='{names}' # the values are not here: docs/secrets.md\n" if names else ""
    command, variables = _words(plan)
    return [
        "",
        "# source, target, rw or ro; data: a squashfs file, whose content is mounted",
        mounts(plan.container),
        "",
        *([sweep_table.environment(sweep), ""] if sweep else []),
        *_when(plan.policy.checkpoints, f"KIT_CHECKPOINT_PATH={checkpoints}"),
        f"KIT_CODE={code if program.code else ''}",
        command,
        "# The job's own variables; "
        "set inside the container, last, so that no image wins over them.",
        f"{variables}{secrets}",
    ]


def image(container: Container) -> list[str]:
    """Return the lines that say which image this is, each of which is one value."""
    return [
        f"KIT_IMAGE={bash(container.image or '')}",
        f"KIT_SUBMITTED_FINGERPRINT={bash(container.fingerprint or '')} "
        "# the job refuses any other image; empty: any image",
        f"KIT_SUBMITTED_SHA256={bash(container.sha256 or '')} "
        "# of a file of kit build; nodes check their copies; empty: no check",
    ]


def mounts(container: Container) -> str:
    lines = ""
    for mount in container.mounts:
        mode = "data" if mount.is_data else "ro" if mount.read_only else "rw"
        lines += f"\n  {bash(mount.source)} {bash(mount.target)} {mode}"
    return f"KIT_MOUNTS=({lines}\n)"


def _words(plan: Plan) -> tuple[str, str]:
    """Return the lines of the command and of the job's variables.

    The run directory goes by its variable there, so that it may be moved.
    """
    program = plan.program

    def word(value: str) -> str:
        parts = around(value, plan.layout.run_dir)
        return '"${KIT_RUN_DIR}"'.join(
            sweep_table.word(part, program.sweep) if part or len(parts) == 1 else ""
            for part in parts
        )

    variables = "".join(f"\n  {name}={word(value)}" for name, value in program.env)
    return f"KIT_COMMAND=({' '.join(map(word, program.command))})\n", f"KIT_ENV=({variables}\n)\n"


def around(text: str, run_dir: str) -> list[str]:
    """Return the text before, between and behind whole paths of the run directory or in it."""
    begin = rf"(?:(?<![^{_SEPARATORS}])|(?<=://))"
    return re.split(rf"{begin}{re.escape(run_dir)}(?=[/{_SEPARATORS}]|\Z)", text)
