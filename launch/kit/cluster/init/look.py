"""Hold what `kit init` needs to know of a machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from kit.cluster.probe import IN_MEMORY, NOT_BETWEEN_NODES, SHARED, Machine


@dataclass(frozen=True)
class Folder:
    type: str  # ext4, nfs4, lustre ...
    free_mib: int
    writable: bool
    inode: str
    changed: str  # when something in it was made or removed

    @property
    def is_shared(self) -> bool:
        return bool(SHARED.match(self.type)) or self.type.startswith("fuse.")

    def is_same(self, other: Folder) -> bool:
        """Return True if two machines see the same folder.

        The top folders of two disks have the same inode, so their times count, too; but the clients
        of a file server may know an old time.
        """
        if self.type.startswith(IN_MEMORY):
            return False
        return self.inode == other.inode and (self.is_shared or self.changed == other.changed)

    @property
    def is_a_disk(self) -> bool:
        """True for a disk that only this machine sees."""
        return not self.is_shared and not self.type.startswith(IN_MEMORY)


@dataclass(frozen=True)
class Look:
    """The facts of one machine."""

    host: str
    cpus: int = 1
    gpus: tuple[str, ...] = ()  # a name for each
    tools: tuple[str, ...] = ()  # programs that start containers
    torch: str = ""  # its version for the Python of a job without a container, or ""
    rdma: dict[str, str] = field(default_factory=dict)  # {device: its link layer}
    networks: tuple[str, ...] = ()
    folders: dict[str, Folder] = field(default_factory=dict)


def of(machine: Machine) -> Look:
    """Return what probe.sh said of a machine."""
    folders = {}
    for path, _, able, kind, free, _, _, inode, changed in machine.all("look"):
        if free.isdecimal():
            folders[path] = Folder(kind, int(free), able == "yes", inode, changed)
    names = dict.fromkeys(words[0] for words in machine.all("interface"))
    return Look(
        host=machine.name,
        cpus=machine.number("cpus") or 1,
        gpus=tuple(name for name in machine.one("gpu") if name),
        tools=tuple(words[0] for words in machine.all("tool")),
        torch=machine.one("torch", 2)[1],
        rdma={words[0]: words[2] for words in machine.all("rdma") if len(words) > 2},
        networks=tuple(name for name in names if not name.startswith(NOT_BETWEEN_NODES)),
        folders=folders,
    )
