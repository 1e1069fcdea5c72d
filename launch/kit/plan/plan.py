"""The plan of a run: a job with nothing left to decide. The same plan renders the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Optional

from kit.config.bandwidth_target import Expectation
from kit.config.mount_list import Mount
from kit.config.notify import Notify
from kit.config.secrets import Secrets
from kit.config.sweeps import Table
from kit.files.typed_json import NOT_WRITTEN
from kit.plan.bad_nodes import Bad
from kit.plan.mounting import FileView
from kit.plan.packages import Packages
from kit.plan.source_files import Sources
from kit.slurm import task_numbers

Header = tuple[tuple[str, Optional[str]], ...]  # (option, value); None where the option takes none

MOST = 1_000_000  # of nodes, and of what else is counted in a plan
# What a record must hold to be believed, beside a value of the type.
Count = Annotated[int, lambda value: 0 < value <= MOST]
Array = Annotated[str, task_numbers.is_sound]


@dataclass(frozen=True)
class Layout:
    """Where the run lies, and how much of the cluster it has."""

    name: str
    run_dir: str
    nodes: Count
    spares: int  # nodes beyond `nodes`, to do without bad ones
    processes_per_node: Count
    gpus_per_node: int
    tasks_per_node: Count  # Slurm's: one where the launcher itself starts the processes
    array: Optional[Array]  # the tasks' numbers, as sbatch takes them
    least: int = 0  # the fewest nodes of a range; 0 without a range

    @property
    def requested_nodes(self) -> int:
        return self.nodes + self.spares

    @property
    def cpus_per_task(self) -> int:
        """Return how many CPUs kit asks for where the job does not say: one rank may feed GPUs."""
        return max(self.processes_per_node, self.gpus_per_node) // self.tasks_per_node

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class Container:
    """What the program runs in; without an image the runtime is `none`."""

    runtime: str
    image: Optional[str]
    fingerprint: Optional[str]  # of the image as it was at submission
    sha256: Optional[str]  # of one that `kit build` made
    mounts: tuple[Mount, ...]
    remap_root: bool
    stage: str
    # The file of `kit build` that the job names, where an engine runs the image that it was made of
    made_file: str = ""
    cache: str = ""  # where compile caches lie: `node` or `keep`; empty: kit sets nothing
    packages: Packages = Packages()
    unpack: str = ""  # yes, no, or auto: each node chooses; empty where the runtime never unpacks

    @property
    def is_known_by_name(self) -> bool:
        """Return whether nobody noted which image had that name, as of an engine's."""
        return bool(self.image and not self.fingerprint and "sha256:" not in self.image)


@dataclass(frozen=True)
class Snapshot:
    """The code of a run, as it was at submission."""

    sources: Sources
    workdir: str  # what the program calls sources.root
    used: tuple[str, ...]  # the files of the command
    is_module: bool
    notes: tuple[str, ...] = ()  # what the user should know of it


@dataclass(frozen=True)
class RankProgram:
    """What every rank runs."""

    launcher: str
    command: tuple[str, ...]
    workdir: str
    env: tuple[tuple[str, str], ...]  # the job's, the profile's, and what is inherited
    inherited: tuple[str, ...]  # the names of those that are the submitting shell's
    secrets: Secrets  # where their values come from
    sweep: Table
    # Lines of bash
    script: str = ""  # in the place of a program
    setup: str = ""  # in the container, before it
    host_setup: str = ""  # on the first node, before all else
    # None where the job runs live code
    code: Optional[Snapshot] = field(default=None, metadata=NOT_WRITTEN)


@dataclass(frozen=True)
class Policy:
    """What happens when something takes long, fails or is preempted."""

    max_restarts: int
    on_preempt: str
    checkpoint_s: int
    max_requeues: Optional[int]
    ready_timeout_s: int
    checkpoints: str = ""  # where the program's are, outside the container
    notify: Notify = Notify()
    elastic: bool = False  # torchrun starts the ranks again, and not kit
    stall_s: int = 0  # without progress, after which the ranks stand still; 0 for never
    on_stall: str = "end"
    resubmit: bool = False  # goes on as a new job, and not by being requeued
    health: str = ""  # how nodes are looked at first: `quick`, or the path of a program
    share: str = ""  # with whom: `group`, that of the run directory; empty for nobody


@dataclass(frozen=True)
class Profile:
    """What the profile of the cluster says."""

    cluster: str  # its name
    text: str
    scratch: str
    bad_nodes: str  # where nodes that cannot work are noted
    # what kit bench is to reach there
    expect: Optional[Expectation] = field(default=None, metadata=NOT_WRITTEN)


@dataclass(frozen=True)
class Reasons:
    """Why kit decided as it did; a text is empty where the job says it."""

    why_runtime: str = ""
    why_stage: str = ""
    left_out: tuple[Bad, ...] = ()  # the nodes that this job does without
    why_live: str = field(default="", metadata=NOT_WRITTEN)
    why_unpack: str = ""


@dataclass(frozen=True)
class Plan:
    layout: Layout
    container: Container
    program: RankProgram
    policy: Policy
    profile: Profile
    header: Header
    reasons: Reasons

    @property
    def view(self) -> FileView:
        container = self.container
        return FileView(container.mounts, container.runtime != "none", self.program.workdir)

    def rehearsal(self, folder: str) -> Plan:
        """Return the plan in another folder and without its code, to have Slurm judge it."""
        layout = replace(self.layout, run_dir=f"{folder}/run")
        program, policy = replace(self.program, code=None), replace(self.policy, share="")
        return replace(self, layout=layout, program=program, policy=policy)
