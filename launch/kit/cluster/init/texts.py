"""Write the texts of the profile and the job: values with their reasons, other keys as comments."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath

from kit.base import assets
from kit.cluster.init.decision import Decision
from kit.cluster.init.programs import Program
from kit.cluster.init.shape import Shape
from kit.config import plugins
from kit.config.plugins import Plugin
from kit.config.yaml_source import inline

BUILD = "kit build --name first"


@dataclass(frozen=True)
class Chosen:
    """Everything that the two files say."""

    profile: str
    title: str  # what the site is, in a few words
    shape: Shape
    program: Program
    decisions: dict[str, Decision]
    can_be_preempted: str = ""  # Slurm's mode of preemption, or ""
    limits_memlock: bool = True  # a login node's limits would apply to jobs
    platform: str = ""  # of the nodes, if they are another kind of machine than this one

    @property
    def is_local(self) -> bool:
        return "partition" not in self.decisions

    @property
    def start(self) -> str:
        """The command that starts the job."""
        return "kit run" if self.is_local else "kit submit"

    @property
    def build(self) -> str:
        """The command that makes the first image."""
        return f"{BUILD} --platform {self.platform}" if self.platform else BUILD


def profile(chosen: Chosen) -> str:
    decisions = chosen.decisions
    gpus, slurm = [], []
    if not chosen.is_local:
        gpus = [
            "# How jobs request GPUs: gpus-per-node, gres, or none.",
            *_key("gpu_directive", decisions["gpu_directive"], "none"),
            "",
        ]
        any_option = "# Any sbatch option for every job here, by its long name."
        slurm = ["", any_option, *_options(chosen)]
    parts = [
        f"# Profile of {chosen.title}, as kit init found it. Jobs name this file by "
        f"`cluster: {chosen.profile}`; their own values replace it.",
        f"description: {inline(chosen.title)}",
        "",
        _of_runtimes(),
        *_key("runtime", decisions["runtime"], plugins.runtimes(local=False)[0].name),
        "",
        *gpus,
        "# A node's own disk, writable: containers are unpacked below it "
        "[the runtime's own place at this site, or /tmp].",
        *_key("scratch", decisions["scratch"], "/local"),
        "",
        "# Variables for all training processes. The network between nodes:",
        decisions["fabric"].comment,
        _variables(decisions["fabric"].value),
        *slurm,
    ]
    return "\n".join(parts) + "\n"


def _variables(fabric: str) -> str:
    """Return the block `env` of the profile that kit brings for this fabric."""
    file = assets.folder("env") / f"{fabric or 'generic'}.yaml"
    found = re.search(r"^(?:# )?env:.*(?:\n.+)*", file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[0] if found else ""


def _of_runtimes() -> str:
    """Return a line on which runtimes there are for image files."""
    common = plugins.runtimes(".sqsh", local=False)
    alone = _listed(plugins.runtimes(".sif", local=False))
    more = f" A .sif always runs under {alone}."
    return f"# What runs image files (.sqsh): {_listed(common)}.{more}"


def _listed(runtimes: list[Plugin]) -> str:
    *first, last = (item.name for item in runtimes)
    return f"{', '.join(first)} or {last}" if first else last


def _options(chosen: Chosen) -> list[str]:
    account, lines = chosen.decisions["account"], []
    if account.value:
        lines += [f"  {account.comment}", f"  account: {inline(account.value)}"]
    if chosen.decisions["fabric"].value and chosen.limits_memlock:
        lines += [
            "  # Network cards need pinned memory, and the login node's limit on it would come "
            "along: https://slurm.schedmd.com/faq.html#memlock",
            "  propagate: NONE",
        ]
    unset = [] if account.value else [account.comment, "#   account: my-project"]
    return [*(["slurm:", *lines] if lines else ["# slurm:"]), *unset]


def job(chosen: Chosen, sites_profile: str) -> str:
    """Return the text of job.yaml; `sites_profile` is the site's own, if it has one."""
    place = "machine" if chosen.is_local else "cluster"
    origin = f"The profile that kit init wrote for this {place}"
    if sites_profile:
        origin = f"The site's own profile of this {place}, {sites_profile}"
    decisions, shape, program = chosen.decisions, chosen.shape, chosen.program
    words = [program.file, *program.arguments.split()]
    is_one_word = shlex.quote(program.file) == program.file
    launcher = ["# found: the program starts its ranks itself", "launcher: spawn"]
    parts = [
        f"# A first job for {chosen.title}, written by kit init. "
        f"For the other keys: {chosen.start} --help, or kit's README.",
        "#",
        *_how_to_start(chosen),
        "",
        f"name: {inline(PurePath(program.file).stem)}",
        "",
        decisions["program"].comment,
        f"command: {inline(' '.join(words) if is_one_word else words)}",
        *(launcher if program.spawns else []),
        "",
        f"# {origin}: settings of all jobs here.",
        f"cluster: {inline(chosen.profile)}",
        "",
        *_image(decisions["image"], chosen),
        "",
        decisions["shape"].comment,
        f"nodes: {shape.nodes}",
        *([f"gpus_per_node: {shape.gpus}"] if shape.gpus else []),
        f"processes_per_node: {shape.processes}",
        *([] if chosen.is_local else _slurm_keys(chosen)),
        "",
        *_optional(chosen),
    ]
    return "\n".join(parts) + "\n"


def _how_to_start(chosen: Chosen) -> list[str]:
    lines = {chosen.start: "starts this file, job.yaml, from its folder"}
    if not chosen.is_local:
        lines = {
            "kit submit --dry-run": "prints the scripts, and submits nothing",
            "kit submit --follow": "submits it, and shows its logs",
        }
    lines[f"{chosen.start} -- --lr 0.1"] = f"arguments after -- go to {chosen.program.file}"
    return [f"#   {line:24}{meaning}" for line, meaning in lines.items()]


def _image(image: Decision, chosen: Chosen) -> list[str]:
    if image.value:
        return [image.comment, f"image: {inline(image.value)}"]
    engines = plugins.runtimes(local=True)
    scheme = engines[0].words("images")[0]
    make = f"kit build --to {scheme.partition(':')[0]} makes one"
    name, meaning = f"{scheme}NAME", f"one of {_listed(engines)} here; {make}"
    if not chosen.is_local or chosen.decisions["runtime"].value:
        name, build = "first", f"{chosen.build} makes it"
        meaning = f"{build}; or, without changing this file: {chosen.start} --image first"
    return [image.comment, f"# image: {name:21} # {meaning}"]


def _slurm_keys(chosen: Chosen) -> list[str]:
    shape, partition = chosen.shape, chosen.decisions["partition"]
    memory = f"all of a node's memory, {shape.memory_gib} GiB"
    options = {
        f"cpus-per-task: {shape.cpus}": "CPUs of a node, shared by all of its ranks",
        "# mem: 0": f"{memory}; without it, a job gets Slurm's default",
    }
    if shape.one_type:
        mark, meaning = "# ", "only nodes of this type: in a mixture, the slowest sets the pace"
        if shape.wants_type:
            mark, meaning = "", "found: Slurm takes no job here that does not name the type"
        options[f'{mark}gres: "{shape.one_type}"'] = meaning
    return [
        "",
        "# guessed: long enough for a first run, within the partition's limit - "
        "change it if Slurm ends the job (hours:minutes:seconds)",
        f'time: "{shape.time}"',
        "",
        "slurm:",
        f"  {partition.comment}",
        f"  partition: {inline(partition.value)}",
        *(f"  {option:28} # {meaning}" for option, meaning in options.items()),
    ]


def _optional(chosen: Chosen) -> list[str]:
    rows = {
        'mounts: ["/data:/data:ro"]': "folders that the container sees, SOURCE:TARGET[:ro]; "
        "it sees this file's folder anyway",
        "env: {NCCL_DEBUG: WARN}": "variables for the training processes",
    }
    if not chosen.is_local:
        copies = "every node copies the image to its own disk, once"
        rows["stage: local"] = f"{copies}: for image files on a slow file system"
        if mode := chosen.can_be_preempted:
            meaning = f"found: jobs here can be preempted ({mode}); docs/preemption.md"
            rows["on_preempt: checkpoint"] = meaning
        found = "a bad one is found before the start, and not used"
        rows["spares: 1"] = f"one node more than needed: {found}"
    lines = [f"# {key:28} # {meaning}" for key, meaning in rows.items()]
    return ["# More keys; remove the # to use them:", *lines]


def _key(key: str, decision: Decision, example: str) -> list[str]:
    value = f"{key}: {inline(decision.value)}" if decision.value else f"# {key}: {example}"
    return [decision.comment, value]
