"""The checks of a compute node, in the order in which they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kit.doctor.checks import FAIL, NOTE, WARN, Check, Found, Problem
from kit.doctor.facts import Cluster, Node
from kit.doctor.image_checks import DRIVER, IMAGE
from kit.doctor.network import NETWORK

# df's names of file systems on which enroot's locks time out, or of which a node's own scratch should not be.
REMOTE = re.compile(r"nfs|lustre|gpfs|beegfs|fhgfs|.*ceph|panfs|smb|cifs|afs|weka|9p|virtiofs|orangefs|fuse\.(sshfs|gluster|s3|gcs|rclone|juicefs)|gluster")
MEMORY = ("tmpfs", "ramfs")
OLDEST_BASH = (4, 4)
LITTLE_MIB, SOME_MIB = 1024, 5 * 1024  # KIT_DISK_MB of nodes/good.sh, and room for an image
UNPACKED = 3  # an image of squashfs grows by so much, at most times
CLOCK_S, CLOCK_WRONG_S = 1.0, 60.0
SHM_LITTLE_MIB, SHM_SOME_MIB = 64, 1024  # Docker's default; NCCL and DataLoader workers want more
FEW_FILES, SOME_FILES = 1024, 4096
FEW_PROCESSES, SOME_PROCESSES = 1024, 4096
FEW_INODES = 10000
MORE_FILES = "LimitNOFILE=131072 for slurmd, or propagate this machine's: kit submit JOB --slurm propagate=NOFILE"
TIME_SERVICE = "start the time service there: chronyc tracking, timedatectl"
SHM = "/dev/shm"  # noqa: S108 - the kernel's name for it
UNWELL = re.compile(r"DOWN|DRAIN|FAIL|ERROR|UNKNOWN|FUTURE|NOT_RESPONDING|INVAL|BLOCKED|\*")


def is_unwell(state: str) -> bool:
    return bool(UNWELL.search(state.replace("POWERED_DOWN", "").replace("POWERING_DOWN", "").replace("POWER_DOWN", "")))


def _state(node: Node, cluster: Cluster) -> Iterator[Found]:
    if is_unwell(node.state):
        well = [other for other in cluster.nodes if not is_unwell(other.state)]
        problem = "named" if cluster.asked.named else "too-few" if len(well) < cluster.asked.nodes else "unwell"
        evidence = f"{node.state}{f': {node.reason}' if node.reason else ''}"
        yield Found(problem, evidence, {"left": str(len(well)), "needed": str(cluster.asked.nodes)})
    elif not node.asked:
        yield Found("busy", node.state)


def _answers(node: Node, _: Cluster) -> Iterator[Found]:
    if node.asked and not node.answered:
        yield Found("silent", node.problem)


def _bash(node: Node, _: Cluster) -> Iterator[Found]:
    version = node.one("bash")[0]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_BASH:
        yield Found("old", f"bash {version}")


def _runtime(node: Node, cluster: Cluster) -> Iterator[Found]:
    runtime = cluster.runtime()
    if runtime == "none":
        if not cluster.asked.runtime:
            yield Found("no-runtime", "none of apptainer, enroot")
        return
    needed = "enroot" if runtime == "pyxis" else runtime
    version, usual = node.tool(needed), cluster.most(other.tool(needed) for other in cluster.answered if other.tool(needed))
    if not version:
        yield Found("missing", f"{needed} is not on PATH there", {"runtime": needed})
    elif version != usual:
        yield Found("version", f"{needed} {version}, others have {usual}", {"runtime": needed})


def _seen_runtime(node: Node, _: Cluster) -> str:
    return ", ".join(f"{name} {version}" for name, version in node.all("tool"))


def _uses_namespaces(cluster: Cluster) -> bool:
    return cluster.runtime() in ("apptainer", "enroot", "pyxis")


def _namespaces(node: Node, cluster: Cluster) -> Iterator[Found]:
    said = node.one("namespaces")[0]
    if said not in ("ok", "unknown") and not (cluster.runtime() == "apptainer" and node.has("setuid")):
        yield Found("refused", said)


def _subuid(node: Node, cluster: Cluster) -> Iterator[Found]:
    """Many sites have none at all, and most jobs need none."""
    missing = [f"/etc/{kind}" for kind in ("subuid", "subgid") if not node.one(kind)[0]]
    others = any(all(other.one(kind)[0] for kind in ("subuid", "subgid")) for other in cluster.answered)
    if missing and (cluster.asked.remap_root or others):
        yield Found("missing", f"no line for {node.one('user')[0]} in {' and '.join(missing)}", {"user": node.one("user")[0]})


def _scratch(node: Node, cluster: Cluster) -> Iterator[Found]:
    for owner in (node.one("scratch-owner")[0], node.one("containers-owner")[0]):
        if owner:
            yield Found("owner", owner)
            return
    for fact in ("scratch", "containers"):
        folder, there, able = node.one(fact, 7)[:3]
        if able not in ("yes", "") and (fact == "scratch" or _unpacks_with_enroot(cluster)):
            missing = f"; {folder} is not there" if folder != there and fact == "scratch" else ""
            yield Found("unwritable", f"{able}{missing}", {"folder": folder})
            return


def _unpacks_with_enroot(cluster: Cluster) -> bool:
    return cluster.runtime() in ("enroot", "pyxis")


def _place(node: Node, cluster: Cluster) -> list[str]:
    """Where images are unpacked or copied to: folder, the part of it that exists, whether it can be written, file system, MiB, inodes."""
    return node.one("containers" if _unpacks_with_enroot(cluster) and node.has("containers") else "scratch", 7)


def _space(node: Node, cluster: Cluster) -> Iterator[Found]:
    folder, there, _, _, free, inodes, total = _place(node, cluster)
    unpacks = _unpacks_with_enroot(cluster) or cluster.asked.unpacks
    if not free.isdecimal():
        yield Found("unknown", there)
        return
    needed = cluster.asked.image_mib * (UNPACKED if _unpacks_with_enroot(cluster) else 1) if unpacks else 0
    evidence = f"{int(free)} MiB free"
    if unpacks and int(free) < max(LITTLE_MIB, needed):
        yield Found("full", f"{evidence}, needed: {max(LITTLE_MIB, needed)}", {"folder": folder})
    elif int(free) < (SOME_MIB if unpacks else LITTLE_MIB):
        yield Found("little", evidence, {"folder": folder})
    if inodes.isdecimal() and total not in ("0", "-", "") and int(inodes) < FEW_INODES and int(free) >= LITTLE_MIB:
        yield Found("inodes", f"{inodes} inodes free", {"folder": folder})


def _seen_space(node: Node, cluster: Cluster) -> str:
    folder, _, _, _, free, _, _ = _place(node, cluster)
    return f"{folder}: {int(free) // 1024} GiB free" if free.isdecimal() else ""


def _disk(node: Node, cluster: Cluster) -> Iterator[Found]:
    folder, _, _, kind, _, _, _ = _place(node, cluster)
    if REMOTE.match(kind):
        yield Found("remote" if cluster.runtime() == "enroot" else "shared", kind, {"folder": folder})
    elif kind in MEMORY:
        yield Found("memory", kind, {"folder": folder})


def _containers(node: Node, _: Cluster) -> Iterator[Found]:
    for path, *_more in node.all("half-made"):
        yield Found("half-made", path)


def _cgroups(node: Node, cluster: Cluster) -> Iterator[Found]:
    version, inside = node.one("cgroups", 2)
    usual = cluster.most(other.one("cgroups")[0] for other in cluster.answered)
    if version != usual:
        yield Found("differ", f"{version}, others have {usual}")
    elif cluster.asked.config.get("ProctrackType") == "proctrack/cgroup" and inside in ("", "0"):
        yield Found("outside", "its processes are in no cgroup of Slurm's, though slurm.conf says ProctrackType=proctrack/cgroup")


def _clock(node: Node, _: Cluster) -> Iterator[Found]:
    if abs(node.skew_s) > CLOCK_S:
        direction = "ahead of" if node.skew_s > 0 else "behind"
        yield Found("wrong" if abs(node.skew_s) > CLOCK_WRONG_S else "off", f"{abs(node.skew_s):.0f} s {direction} this machine's")


def _folder(node: Node, cluster: Cluster) -> Iterator[Found]:
    found, evidence = node.one("folder", 2)[:2]
    fields = {"folder": cluster.asked.folder}
    if found == "missing":
        yield Found("missing", cluster.asked.folder, fields)
    elif found == "other":
        yield Found("other", f"a file that kit made there is not there: {evidence}" if evidence else cluster.asked.folder, fields)
    elif found == "read-only":
        yield Found("read-only", evidence, fields)


def _mounts(node: Node, _: Cluster) -> Iterator[Found]:
    for problem, evidence in node.all("mount"):
        yield Found(problem, evidence)


def _shm(node: Node, _: Cluster) -> Iterator[Found]:
    size, _free, problem = node.one("shm", 3)
    if problem:
        yield Found("unusable", problem)
    elif int(size or 0) <= SHM_LITTLE_MIB:
        yield Found("tiny", f"{size} MiB")
    elif int(size) < SHM_SOME_MIB:
        yield Found("small", f"{size} MiB")


def _limits(node: Node, _: Cluster) -> Iterator[Found]:
    limits = {name: soft for name, soft, *_ in node.all("limit")}
    for name, few, some in (("nofile", FEW_FILES, SOME_FILES), ("nproc", FEW_PROCESSES, SOME_PROCESSES)):
        if limits.get(name, "").isdecimal() and int(limits[name]) < some:
            yield Found(f"{name}-{'few' if int(limits[name]) < few else 'some'}", f"{limits[name]}")
    if any(state == "ACTIVE" for _, state in node.all("rdma")) and limits.get("memlock", "").isdecimal() and int(limits["memlock"]) < 1024 * 1024:
        yield Found("memlock", f"{limits['memlock']} KiB")


def _wants_gpus(cluster: Cluster) -> bool:
    return bool(cluster.asked.gpus or any(node.gpus for node in cluster.nodes))


def _gpus(node: Node, cluster: Cluster) -> Iterator[Found]:
    shown, driven, problem = node.one("gpus", 3)
    # A job that asks for none may see none, while the driver knows them all.
    there = max(int(shown or 0), int(driven or 0))
    if there < node.gpus:
        yield Found("fewer", f"{there} of {node.gpus}{f'; {problem}' if problem else ''}")


CHECKS = (
    Check(
        "state",
        "what Slurm says of the node",
        {
            "named": Problem(FAIL, "Slurm gives it to no job", "leave it out, or have it resumed: scontrol show node {nodes}"),
            "too-few": Problem(
                FAIL, "Slurm gives it to no job, and {left} nodes are left of {needed}", "ask for fewer, or have it resumed: scontrol show node {nodes}"
            ),
            "unwell": Problem(WARN, "Slurm gives it to no job", "jobs start without it; if it should be well: scontrol show node {nodes}"),
            "busy": Problem(NOTE, "not looked into", "all nodes: again when they are free; or these: kit doctor --nodelist {nodes}"),
        },
        _state,
    ),
    Check(
        "answers",
        "whether a task starts there, and answers in time",
        {
            "silent": Problem(
                FAIL, "did not answer", "see what slurmd says there: scontrol show node {nodes}; without it: kit submit JOB --slurm exclude={nodes}"
            )
        },
        _answers,
    ),
    Check(
        "bash",
        "the version of bash, in which a run's scripts run",
        {"old": Problem(FAIL, "its bash is older than 4.4", "install bash 4.4 or later there, first on the PATH of jobs: bash --version")},
        _bash,
        lambda node, _: node.one("bash")[0],
    ),
    Check(
        "runtime",
        "what runs the containers: installed, the same version everywhere",
        {
            "missing": Problem(
                FAIL, "{runtime} is missing", "install it there (a module that the job loads?), or without the nodes: kit submit JOB --slurm exclude={nodes}"
            ),
            "no-runtime": Problem(
                WARN, "there is nothing to run containers with", "install apptainer or enroot on the nodes; without containers: runtime: none"
            ),
            "version": Problem(WARN, "another version of {runtime} than on most nodes", "install the same everywhere"),
        },
        _runtime,
        _seen_runtime,
        lambda cluster: cluster.asked.runtime != "none",
    ),
    Check(
        "namespaces",
        "whether a user may make user namespaces, for enroot and for apptainer without its setuid part",
        {
            "refused": Problem(
                FAIL,
                "a user may not make user namespaces",
                "as root there: sysctl user.max_user_namespaces=65536; on Debian and Ubuntu see docs/doctor.md; or install apptainer's setuid package",
            )
        },
        _namespaces,
        matters=_uses_namespaces,
    ),
    Check(
        "subuid",
        "/etc/subuid and /etc/subgid, where the job remaps root or other nodes have lines of the user",
        {
            "missing": Problem(
                WARN,
                "the user has no range of ids for being root in a container",
                "as root there: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
            )
        },
        _subuid,
        matters=_uses_namespaces,
    ),
    Check(
        "scratch",
        "the node's own folder for containers: there, writable, the user's",
        {
            "owner": Problem(
                FAIL, "kit's folder belongs to somebody else, or cannot be written", "have it removed, or name another scratch in the cluster's profile"
            ),
            "unwritable": Problem(
                FAIL, "cannot write below {folder}", "mount it for writing, give the user the right; or name another scratch in the cluster's profile"
            ),
        },
        _scratch,
    ),
    Check(
        "space",
        "free room there, for the image where one is named",
        {
            "full": Problem(FAIL, "{folder} is full", "free some: kit images gc --nodes {nodes}; or name another scratch in the cluster's profile"),
            "little": Problem(WARN, "{folder} has little room", "free some: kit images gc --nodes {nodes}"),
            "inodes": Problem(WARN, "{folder} has few inodes left", "remove files there, or name another scratch in the cluster's profile"),
            "unknown": Problem(WARN, "its file system does not answer", "look there: df"),
        },
        _space,
        _seen_space,
    ),
    Check(
        "disk",
        "the file system of scratch, which is to be the node's own",
        {
            "remote": Problem(
                FAIL,
                "{folder} is on a network file system, where enroot's locks time out",
                "name node-local scratch in the cluster's profile: `scratch: /local`, or unset ENROOT_DATA_PATH",
            ),
            "shared": Problem(WARN, "{folder} is on a network file system", "name node-local scratch in the cluster's profile: `scratch: /local`"),
            "memory": Problem(
                WARN, "{folder} is memory: what is unpacked there is missing to the job", "name a disk in the cluster's profile: `scratch: /local`"
            ),
        },
        _disk,
        lambda node, cluster: _place(node, cluster)[3],
    ),
    Check(
        "containers",
        "half-made containers that nobody is making",
        {"half-made": Problem(WARN, "a half-made container is left there", "the next job makes it anew; or remove it: kit images gc --nodes {nodes} --days 1")},
        _containers,
        matters=_unpacks_with_enroot,
    ),
    Check(
        "cgroups",
        "the version, and whether Slurm's are in use where slurm.conf says so",
        {
            "differ": Problem(WARN, "another version of cgroups than on most nodes", "boot all with the same: systemd.unified_cgroup_hierarchy"),
            "outside": Problem(WARN, "Slurm does not keep the job in a cgroup", "see slurmd's log there for cgroup errors; cgroup.conf"),
        },
        _cgroups,
        lambda node, _: node.one("cgroups")[0],
    ),
    Check(
        "clock",
        "the difference to this machine's clock",
        {
            "off": Problem(WARN, "its clock is off", TIME_SERVICE),
            "wrong": Problem(FAIL, "its clock is wrong: munge refuses jobs at 300 s, and files get times of another age", TIME_SERVICE),
        },
        _clock,
    ),
    Check(
        "folder",
        "whether this folder, or the run directory's, is the same on all nodes, and writable",
        {
            "missing": Problem(
                FAIL, "{folder} is not there", "mount it there: findmnt -T {folder} here says from where; or start from a folder that all nodes see"
            ),
            "other": Problem(FAIL, "{folder} is another folder there", "mount the same there: findmnt -T {folder}; or start from a folder that all nodes see"),
            "read-only": Problem(FAIL, "{folder} cannot be written there", "mount it for writing there, and see who may: ls -ld {folder}"),
        },
        _folder,
        lambda node, _: node.one("folder", 2)[1],
    ),
    Check(
        "mounts",
        "the sources of the job's mounts",
        {
            "missing": Problem(FAIL, "a folder to be mounted is not there", "make it on every node, or put it on a shared file system"),
            "unreadable": Problem(FAIL, "a folder to be mounted cannot be read", "give the user the right to it: ls -ld"),
        },
        _mounts,
        matters=lambda cluster: bool(cluster.asked.mounts),
    ),
    *IMAGE,
    *NETWORK,
    Check(
        "shm",
        "the size of /dev/shm",
        {
            "unusable": Problem(FAIL, f"{SHM} cannot be written", "as root there: mount -t tmpfs -o mode=1777 shm /dev/shm"),
            "tiny": Problem(FAIL, f"{SHM} is too small for NCCL and for DataLoader workers", "as root there: mount -o remount,size=50% /dev/shm"),
            "small": Problem(WARN, f"{SHM} is small for DataLoader workers", "as root there: mount -o remount,size=50% /dev/shm"),
        },
        _shm,
        lambda node, _: f"{int(node.one('shm')[0] or 0) / 1024:.1f} GiB",
    ),
    Check(
        "limits",
        "ulimits of a job: open files, processes, and locked memory where there is RDMA",
        {
            "nofile-few": Problem(FAIL, "too few files may be open (ulimit -n)", MORE_FILES),
            "nofile-some": Problem(WARN, "few files may be open (ulimit -n): DataLoader workers need many", MORE_FILES),
            "nproc-few": Problem(FAIL, "too few processes may run (ulimit -u)", "LimitNPROC=infinity for slurmd, and /etc/security/limits.conf there"),
            "nproc-some": Problem(WARN, "few processes and threads may run (ulimit -u)", "LimitNPROC=infinity for slurmd, and /etc/security/limits.conf there"),
            "memlock": Problem(
                FAIL,
                "RDMA may not pin memory (ulimit -l)",
                "LimitMEMLOCK=infinity for slurmd, and do not propagate this machine's: kit submit JOB --slurm propagate=NONE",
            ),
        },
        _limits,
        lambda node, _: ", ".join(f"{name} {soft}" for name, soft, *_ in node.all("limit")),
    ),
    Check(
        "gpus",
        "as many GPUs as Slurm says",
        {
            "fewer": Problem(
                FAIL, "it shows fewer GPUs than Slurm says", "look there: nvidia-smi, dmesg | grep -i xid; without it: kit submit JOB --slurm exclude={nodes}"
            )
        },
        _gpus,
        lambda node, _: str(node.gpus or ""),
        _wants_gpus,
    ),
    DRIVER,
)
