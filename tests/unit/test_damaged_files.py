"""Every file that kit reads back, damaged in every way: a line and exit code 0, 1 or 2, within two seconds, and nothing else is touched.

More of them: KIT_DAMAGES=5000 KIT_DAMAGE_SEED=7 KIT_LIMIT_S=2 pytest tests/unit/test_damaged_files.py
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

import event_lines
import strangers
from samples import ROOT

pytestmark = pytest.mark.slow

DAMAGES = int(os.environ.get("KIT_DAMAGES", 40))
SEED = int(os.environ.get("KIT_DAMAGE_SEED", 1))

# ---------------------------------------------------------------- what is damaged, and which commands read it

# Run directories of the project: a job, a sweep, a run on this machine, and a job of a cluster whose login node does not answer.
ONE, TWO, HERE, FAR = "runs/one", "runs/two", "runs/here", "runs/far"
LOGS = f"{ONE}/log/1001"
LOOKS = [("status",), ("status", "one"), ("runs",), ("complete", "bash", "", "kit status "), ("submit", "train.py", "--after", "any:one", "--dry-run")]
RUN = [("logs", "one"), ("logs", "one", "--errors"), ("logs", "one", "--rank", "0"), ("why", "one"), ("why", ONE), ("timeline", "one"), ("cancel", "one")]
RECORD = [("diff", ONE, TWO), ("diff", TWO, ONE), ("rerun", ONE, "--output", "three"), ("exec", "one", "--", "true"), ("hang", "one", "--no-pause")]
SHELF = [("images",), ("images", "gc", "--days", "1"), ("submit", "train.py", "--image", "images/x-0123456789abcdef.sqsh", "--dry-run")]
TIMES = [("timeline", "one"), ("timeline", "one", "--svg", "x.svg"), ("hang", "one"), ("exec", "one", "--", "true"), ("status", "one")]
SWEEP = [("status", "two"), ("status", "two", "--task", "1"), ("logs", "1002_1"), ("why", "1002_1"), ("cancel", "two"), ("cancel", "1002_1"), ("runs",)]
BENCH = [("bench", "--show", "one"), ("bench", "--show", "one", "--svg", "x.svg"), ("bench", "--show", "one", "--json")]
JOB = [("submit", "job.yaml", "--dry-run"), ("render", "job.yaml", "--output", "three"), ("submit", "job.yaml"), ("run", "job.yaml")]
BUILD = [("build", "--to", "docker"), ("build", "--engine", "apptainer")]
READERS: dict[str, list[tuple[str, ...]]] = {
    f"{ONE}/run.json": [*LOOKS, *RUN, *RECORD, *RECORD, *BENCH, *SHELF],
    f"{TWO}/run.json": [*SWEEP, ("diff", ONE, TWO), ("rerun", TWO, "--output", "three"), ("exec", "two", "--task", "1", "--", "true")],
    f"{TWO}/log/1002_1/continued-by": SWEEP,
    f"{TWO}/log/slurm-1002_1.out": SWEEP,
    f"{HERE}/run.json": [("status",), ("status", "here"), ("why", "here"), ("cancel", "here"), ("rerun", HERE), ("hang", "here"), ("logs", "here", "-f")],
    f"{FAR}/run.json": [("status",), ("status", "far"), ("logs", "far"), ("why", "far"), ("cancel", "far"), ("rerun", FAR), ("diff", ONE, FAR)],
    f"{FAR}/log/1009/continued-by": [("status", "far"), ("logs", "far"), ("why", "far"), ("cancel", "far")],
    "../home/state/kit/runs.jsonl": [*LOOKS, *RUN, *RECORD, ("submit", "train.py"), ("bench", "--show", "one")],
    "../home/state/kit/bad-nodes/generic": [("nodes",), ("nodes", "--forget", "node3"), ("submit", "train.py", "--dry-run")],
    "../home/cache/kit/images.json": SHELF,
    "../home/config/kit/clusters/site.yaml": [*JOB, ("nodes", "--cluster", "site"), ("submit", "train.py", "--cluster", "site", "--dry-run")],
    f"{LOGS}/continued-by": [*LOOKS, *RUN],
    f"{LOGS}/rank0.out": [*RUN[3:], *LOOKS, ("hang", "one")],
    f"{LOGS}/node1.out": [*RUN[3:], *LOOKS],
    f"{ONE}/log/slurm-1001.out": [*RUN[3:], *LOOKS],
    f"{LOGS}/events/batch.jsonl": [*TIMES, *RUN, *LOOKS, ("exec", "one", "--", "true"), ("hang", "one")],
    f"{LOGS}/events/ready.jsonl": TIMES,
    f"{LOGS}/events/node1.jsonl": TIMES + RUN + LOOKS,
    f"{LOGS}/bench.json": BENCH,
    f"{ONE}/env.sh": RECORD,
    f"{ONE}/run_script.sh": RECORD,
    f"{ONE}/torchrun.sh": RECORD,
    f"{ONE}/code/train.py": RECORD[:3],
    "keyring.yaml": JOB[2:],
    "job.yaml": JOB,
    "train.py": [*JOB, ("submit", "train.py", "--dry-run"), ("init", "--local", "--force")],
    ".kitignore": JOB,
    ".dockerignore": BUILD,
    "Dockerfile": BUILD,
    "image.lock": BUILD,
    "images/x-0123456789abcdef.json": [*SHELF, *BUILD],
    "images/x-0123456789abcdef.sqsh": SHELF,
    "../slurm/squeue": [*LOOKS, ("cancel", "one"), ("hang", "one"), ("exec", "one", "--", "true"), ("submit", "train.py", "--after", "one")],
    "../slurm/sacct": [("status",), ("status", "one"), ("cancel", "one")],
}
NOT_FILES = ("../slurm/squeue", "../slurm/sacct")  # what Slurm's commands print: bytes alone can be damaged

# ---------------------------------------------------------------- how

ESCAPES = "\x1b]0;x\x07\x1b[2J\x9b31m\u202e"
VALUES = ["null", "true", "0", "-1", "7", "1.5", "1e400", "NaN", '""', '"x"', "[]", "{}", "[[]]", '[["a"]]', '[["a", 1]]', '{"a": 1}', '["a", null]', '"7"']
VALUES += ['"\\u0000"', '"\\ud800"', '"\\udcff"', json.dumps(ESCAPES), '"../../x"', '"/"', '"--me"', '"a\\nb"', f'"{"a" * 100_000}"', "9" * 19, "9" * 5000]
VALUES += [
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    "[" * 60 + "]" * 60,
    '"n[0-99999][0-99999]"',
    '"0-4000000"',
    '"0-9:0"',
    '"9-0"',
]
LINES = [
    "9" * 5000,
    "x",
    "",
    ESCAPES,
    "\0" * 200,
    "node1 " * 5000,
    "[" * 100_000,
    "nodes n[0-65535][0-65535][0-65535]",
    "start inf",
    "start nan",
    "start 1e308",
]
LINES += [
    "end 5 ²",
    "end 5 99999999999",
    f"end 5 {'9' * 5000}",
    "node1 1 1e308 -1e308",
    "rank 0 1 2 3",
    "² node1 0",
    "heard 1 " + "9" * 400,
    "KIT_HOSTS=",
    "KIT_HOSTS=\0",
]
LINES += ["1001|RUNNING|N/A|0:01|1:00|node1|None|/x", "1001_[0-999999999]|PENDING|N/A|0:00|1:00||None|/x", "|" * 9, "100|200|300"]


def changed_value(text: str, random: random.Random) -> str:
    """A text of JSON with another value in it, or without one."""
    lines = text.splitlines() if text.count("\n{") else [text]
    line = random.randrange(len(lines))
    try:
        found = json.loads(lines[line])
    except ValueError:
        return text
    mark, holder, key = "a value of another kind", {"": found}, ""
    while random.random() < 0.85:
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner:
            break
        holder, key = inner, random.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))  # type: ignore[assignment]
    whole = holder if key == "" else found
    if key != "" and random.random() < 0.1:
        del holder[key]
    elif isinstance(holder, list) and random.random() < 0.2:
        holder.append(mark)
    else:
        holder[key] = mark
    lines[line] = json.dumps(whole[""] if key == "" else whole).replace(json.dumps(mark), random.choice(VALUES))
    return "\n".join([*lines, ""])


def changed_line(content: bytes, random: random.Random) -> bytes:
    lines = content.split(b"\n")
    lines.insert(random.randrange(len(lines)), os.fsencode(random.choice(LINES)))
    if random.random() < 0.5:
        lines.pop(random.randrange(len(lines)))
    return b"\n".join(lines)


def changed_word(content: bytes, random: random.Random) -> bytes:
    words = content.split(b" ")
    words[random.randrange(len(words))] = os.fsencode(random.choice(LINES))
    return b" ".join(words)


def flipped(content: bytes, random: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(random.choice([1, 3, 30]) if found else 0):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


BYTES: list[Callable[[bytes, random.Random], bytes]] = [
    lambda content, random: content[: random.randrange(len(content) + 1)],
    lambda content, random: content[random.randrange(len(content) + 1) :],
    lambda content, random: b"",
    lambda content, random: random.randbytes(random.choice([1, 100, 100_000])),
    lambda content, random: content + b"\0" * 300,
    lambda content, random: content * 3,
    lambda content, random: b"\xff\xfe" + content.decode("utf-8", "replace").encode("utf-16-le", "replace"),
    lambda content, random: content.replace(b"\n", b"\r"),
    lambda content, random: os.fsencode(ESCAPES) + content,
    lambda content, random: b"[" * 100_000,
    flipped,
    flipped,
    changed_line,
    changed_line,
    changed_word,
    changed_word,
]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # such a name is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name[:90])


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


# By what the file is replaced.
KINDS: dict[str, Callable[[Path], Any]] = {
    "gone": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "full folder": lambda path: (path / "x").mkdir(parents=True),
    "FIFO": _fifo,
    "socket": _socket,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to("/etc"),
    "10 GB": _sparse,
}


def damage(path: Path, is_file: bool, random: random.Random) -> str:
    """Damages the file, and says how."""
    if is_file and random.random() < 0.25:
        kind = random.choice(list(KINDS))
        path.unlink()
        KINDS[kind](path)
        return kind
    content = path.read_bytes()
    if path.name.endswith((".json", ".jsonl", ".lock")) and random.random() < 0.75:
        new = os.fsencode(changed_value(content.decode(), random))
    else:
        new = random.choice(BYTES)(content, random)
    facts = path.stat()
    path.write_bytes(new)
    path.chmod(facts.st_mode)
    return f"{len(new)} bytes: {new[:300]!r}" if len(new) < 300 else f"{len(new)} bytes"


# ---------------------------------------------------------------- the runs and files as they should be

BENCHED = {
    "format": 1,
    "nodes": [{"name": "node1"}, {"name": "node2"}, {"name": "node3"}],
    "ranks": 3,
    "backend": "nccl",
    "nccl": "2.20",
    "device": "H200",
    "torch": "2.5",
    "sizes": [
        {"bytes": size, "repetitions": 5, "calls": 10, "median_s": 1e-3, "min_s": 9e-4, "algbw_GBps": 10.0, "busbw_GBps": 12.5, "right": True}
        for size in (1024, 1 << 20)
    ],
    "pairs": [{"nodes": pair, "bytes": 1 << 20, "busbw_GBps": 10.0, "right": True} for pair in (["node1", "node2"], ["node1", "node3"], ["node2", "node3"])],
    "expect": {"busbw_GBps": 20.0, "share": 0.5},
}
FACTS = "KIT_HOSTS=node1,node2\nKIT_RENDEZVOUS_ID=1001.1\nKIT_NODES=2\nMASTER_ADDR=node1\n"
ERROR = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: no\n'


def build(place: strangers.Place) -> None:
    """Two runs of Slurm with their logs, and all else that kit reads; made by kit itself where it makes them."""
    home, project = place.home, place.project
    for folder in (home / "state/kit/bad-nodes", home / "cache/kit", home / "config/kit/clusters", project / "images", place.case / "slurm"):
        folder.mkdir(parents=True)
    (home / "state/kit/bad-nodes/generic").write_text(f"{int(time.time())} node3 had no GPU\n")
    (home / "config/kit/clusters/site.yaml").write_text("scratch: /tmp\nenv: {NCCL_DEBUG: INFO}\nslurm: {account: a}\nexpect: {allreduce_busbw_GBps: 20}\n")
    files = {"train.py": "import torch\n", "job.yaml": "command: train.py\ncluster: site\nsecrets: {A: {file: keyring.yaml}}\n", "keyring.yaml": "A: 'one'\n"}
    files |= {".kitignore": "data/\n*.log\n", ".dockerignore": "data\n", "Dockerfile": "FROM busybox:1\nCOPY train.py /\n"}
    files |= {"image.lock": json.dumps({"busybox:1": f"sha256:{'0' * 64}"})}
    for name, text in files.items():
        (project / name).write_text(text)
    (project / "keyring.yaml").chmod(0o600)
    image = project / "images/x-0123456789abcdef.sqsh"
    image.write_bytes(content := b"hsqs" + b"x" * 1000)
    sha256 = hashlib.sha256(content).hexdigest()
    record = {"file": image.name, "sha256": sha256, "size": len(content), "kit": "1", "digest": "0" * 64, "name": "x", "bases": {"busybox:1": None}}
    image.with_suffix(".json").write_text(json.dumps(record))
    (project / "images/x.json").symlink_to(image.with_suffix(".json").name)
    for path in (image, image.with_suffix(".json")):
        os.utime(path, (1e9, 1e9))
    (home / "cache/kit/images.json").write_text(json.dumps({str(image): [1, 2, 3, 4, sha256]}))
    place.tool("sbatch", 'case "$*" in *one*) echo 1001 ;; *) echo 1002 ;; esac')
    one = ("-j", "2x1", "--env", "A=one", "--", "--out", f"{ONE}/x")
    two = ("--sweep", "lr=1,2,3", "--secret", "A=file:keyring.yaml", "--", "--lr", "{lr}")
    for words in (("submit", "train.py", "--output", ONE, *one), ("submit", "train.py", "--output", TWO, *two)):
        assert (done := strangers.call(*words)).code == 0, done
    assert strangers.call("run", "train.py", "--output", HERE).code == 1  # its bash is a stand-in
    known = home / "state/kit/runs.jsonl"
    known.write_text("".join(known.read_text().splitlines(keepends=True)[:-1]))  # as if kit had been killed before its end
    record = json.loads((project / ONE / "run.json").read_text())
    record["job_id"], record["plan"]["layout"]["run_dir"] = "1009", "/far/kit/runs/far"
    shutil.copytree(project / ONE, project / FAR)
    (project / FAR / "log/1009").mkdir()
    (project / FAR / "log/1009/continued-by").write_text("1009\n")
    (project / FAR / "run.json").write_text(json.dumps(record))
    entry = {**json.loads(known.read_text().splitlines()[-1]), "id": "1009", "folder": str(project / FAR), "local": False}
    with known.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    (project / TWO / "log/1002_1").mkdir()
    (project / TWO / "log/1002_1/continued-by").write_text("1002_1\n")
    (project / TWO / "log/slurm-1002_1.out").write_text("kit: node1: job 1002_1 on node1\nkit: error: node1: rank 0 (local rank 0) ended with 1\n")
    place.tool("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid partition specified' >&2; exit 1")
    logs = project / LOGS
    shutil.copytree(ROOT / "tests/unit/recorded/events", logs / "events")
    event_lines.add(logs, "batch", "told", facts=FACTS)
    (logs / "bench.json").write_text(json.dumps(BENCHED))
    event_lines.of_rank(logs, 0, "1 node1 0")
    event_lines.add(logs, "node1", "node_refused", node="node1", cause="image-missing", problem="the image is not there", fix="build it")
    (logs / "rank0.out").write_text(f"epoch 1\n{ERROR}")
    (logs / "node1.out").write_text(f"[rank0] epoch 1\n{ERROR}")
    (logs / "continued-by").write_text("1001\n")
    (project / ONE / "log/slurm-1001.out").write_text("kit: node1: job 1001 on node1\nkit: error: node1: rank 0 (local rank 0) ended with 1\n")
    slurm = place.case / "slurm"
    (slurm / "squeue").write_text(f"1001|RUNNING|2026-11-21T16:43:51|0:01|1:00|node[1-2]|None|{project / ONE}\n")
    (slurm / "sacct").write_text(f"1001|FAILED|{project / ONE}\n")
    place.tool("squeue", f'case "$*" in *%F*) echo "ARRAY_JOB_ID|SUBMIT_TIME|WORK_DIR" ;; *) cat {slurm}/squeue ;; esac')
    place.tool("sacct", f'case "$*" in *Submit*) echo "JobID|Submit|WorkDir" ;; *) cat {slurm}/sacct ;; esac')
    place.tool("scontrol", f"echo 'ClusterName             = a'\nprintf 'JobId=1001 JobState='; cat {slurm}/sacct")
    place.tool("scancel", "exit 0")


def tried(place: strangers.Place, random: random.Random) -> list[tuple[float, str, str]]:
    """(seconds, the file and the command, what went wrong) of each command on one damaged file."""
    place.restore()
    name = random.choice([*READERS, *[f"{ONE}/run.json", "../home/state/kit/runs.jsonl"] * 6])
    if random.random() < 0.5 and name != "../slurm/squeue":
        (place.case / "slurm/squeue").write_text("")  # the job is no longer there: its logs are read
    how = damage(place.project / name, name not in NOT_FILES, random)
    os.chdir(place.project)
    found = []
    for words in random.sample(READERS[name], min(2, len(READERS[name]))):
        if how == "10 GB" and words[0] == "logs":
            continue  # all of a log is what it shows
        before = place.untouched()
        done = strangers.call(*words)
        problem = strangers.wrong(words, done) or ("it changed what is outside" if place.untouched() != before else "")
        said = f": {problem}\n{(done.out + done.errors)[-1500:]}" if problem else ""
        found.append((done.elapsed_s, f"{name} ({how}): kit {' '.join(words)}", said))
    return found


def main(scratch: str, count: str, seed: str) -> None:
    place = strangers.Place(Path(scratch))
    strangers.load_kit()
    build(place)
    place.keep()
    times = []
    for number in range(int(count)):
        for elapsed_s, what, problem in tried(place, random.Random(f"{seed} {number}")):
            times.append((elapsed_s, what))
            if problem:
                print(f"[{seed} {number}] {what}{problem}\n")
    slowest_s, what = max(times)
    print(f"{count} files, {len(times)} commands, the slowest {slowest_s:.2f} s: {what[:200]}", file=sys.stderr)


def test_damaged_files_end_no_command_in_another_way_than_with_a_line(tmp_path: Path) -> None:
    done = strangers.confined(__file__, tmp_path, str(DAMAGES), str(SEED))
    print(done.stderr)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout[-20_000:] + done.stderr[-2000:]


if __name__ == "__main__":
    main(*sys.argv[1:])
