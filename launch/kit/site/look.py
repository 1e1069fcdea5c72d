"""What a machine is, as launch/scripts/look.sh prints it: run here, and by a short job on a node."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from kit import assets, slurm
from kit.errors import KitError

# Names of file systems, as df has them.
SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "cifs", "smb", "afs", "orangefs", "pvfs", "glusterfs", "fuse.", "9p", "vast", "dvs")
_VERSION = 'from importlib.metadata import version; print(version("torch"))'
IN_MEMORY = ("tmpfs", "ramfs", "rootfs")


@dataclass(frozen=True)
class Folder:
    type: str  # ext4, nfs4, lustre ...
    free_kib: int
    writable: bool
    inode: str
    changed: str  # when something in it was made or removed

    @property
    def is_shared(self) -> bool:
        return self.type.startswith(SHARED)

    def is_same(self, other: Folder) -> bool:
        """Whether two machines see one folder. The top folders of two disks have the same inode; a file server's clients may know an old time."""
        if self.type.startswith(IN_MEMORY):
            return False
        return self.inode == other.inode and (self.is_shared or self.changed == other.changed)

    @property
    def is_a_disk(self) -> bool:
        """Of this machine alone."""
        return not self.is_shared and not self.type.startswith(IN_MEMORY)


@dataclass(frozen=True)
class Look:
    """One machine."""

    host: str
    cpus: int = 1
    memory_mb: int = 0
    gpus: tuple[str, ...] = ()  # a name for each
    tools: tuple[str, ...] = ()  # those that start containers
    torch: str = ""  # the version that python3 has, or nothing
    rdma: dict[str, str] = field(default_factory=dict)  # {device: its link layer}
    networks: tuple[str, ...] = ()
    folders: dict[str, Folder] = field(default_factory=dict)


def here(folders: list[str]) -> Look:
    try:
        done = subprocess.run(_command(folders), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitError(f"this machine cannot be looked at: {error}", "bash and the usual tools (df, nproc) must be on PATH") from None
    return read(done.stdout)


def on_node(node: str, options: dict[str, str], folders: list[str]) -> Look:
    """Raises KitError where Slurm does not start the job at once."""
    return read(slurm.on_nodes(node, _command(folders), options))


def read(text: str) -> Look:
    """Lines that are not of look.sh, such as a site's greetings, are left aside."""
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        kind, *words = line.split("\t")
        rows.setdefault(kind, []).append(words)

    def first(kind: str) -> str:
        return next((words[0] for words in rows.get(kind, []) if words), "")

    def number(kind: str) -> int:
        return next((int(words[0]) for words in rows.get(kind, []) if words and words[0].isdecimal()), 0)

    def names(kind: str) -> tuple[str, ...]:
        return tuple(words[0] for words in rows.get(kind, []) if words)

    return Look(
        host=first("host"),
        cpus=number("cpus") or 1,
        memory_mb=number("memory_mb"),
        gpus=names("gpu"),
        tools=names("tool"),
        torch=first("torch"),
        rdma={words[0]: words[1] for words in rows.get("rdma", []) if len(words) == 2},
        networks=names("network"),
        folders={
            words[0]: Folder(words[1], int(words[2]), words[3] == "yes", words[4], words[5])
            for words in rows.get("folder", [])
            if len(words) == 6 and words[2].isdecimal()
        },
    )


def _command(folders: list[str]) -> list[str]:
    script = (assets.folder("launch/scripts") / "look.sh").read_text(encoding="utf-8")
    return ["bash", "-c", script, "look.sh", _VERSION, *folders]
