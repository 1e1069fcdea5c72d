"""Read what a machine said of its folders, for `kit init`."""

from __future__ import annotations

from dataclasses import dataclass

from kit.cluster.probe import IN_MEMORY, SHARED, Machine


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


def folders(machine: Machine) -> dict[str, Folder]:
    """Return the folders that the machine was asked about and has."""
    found = {}
    for path, _, able, kind, free, _, _, inode, changed in machine.all("look"):
        if free.isdecimal():
            found[path] = Folder(kind, int(free), able == "yes", inode, changed)
    return found
