"""Generated job files and command lines: a line and exit code 0, 1 or 2, within two seconds, and nothing else is touched.

More of them: KIT_INPUTS=10000 KIT_INPUT_SEED=7 KIT_LIMIT_S=2 pytest tests/unit/test_generated_input.py
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import pytest

import strangers
from samples import HOSTILE_NAME

pytestmark = pytest.mark.slow

INPUTS = int(os.environ.get("KIT_INPUTS", 50))
SEED = int(os.environ.get("KIT_INPUT_SEED", 1))

# ---------------------------------------------------------------- words

ODD = [
    "999999999",
    "999999x1",
    "",
    "-",
    "--",
    " ",
    "0",
    "1",
    "-1",
    "2x2",
    "1e9",
    "nan",
    "9" * 9,
    "9" * 19,
    "9" * 5000,
    "²",
    "٣",
    "true",
    "null",
    "~",
    "x",
    "é☃",
    "\u202e\x1b[2J\x9b",
]
ODD += [
    "/",
    ".",
    "..",
    "/dev/zero",
    "/etc",
    "pipe",
    "pipe.py",
    "pipe.yaml",
    "sock.py",
    "nothing.py",
    "train.py",
    "job.yaml",
    "runs",
    "one",
    "a" * 300,
    "a" * 100_000,
]
ODD += [
    "=",
    "A=",
    "=B",
    "A=B",
    "A=B=C",
    "PATH=/x",
    "KIT_X=1",
    "1A=2",
    "A=$(touch X)",
    "$(touch X)",
    "`touch X`",
    "'",
    '"',
    "\\",
    "a\nb",
    "\udcff\udc9b",
    "*",
    "[",
    "{",
    "{lr}",
]
ODD += [
    ":",
    "a:b",
    "/a:/b",
    ".:/b:ro",
    "a:b:c:d",
    "any:one",
    "ok:",
    "docker://x",
    "docker://",
    "://",
    "eyJ" + "a" * 20_000,
    "hf_" * 7000,
    "sk-" * 7000,
    HOSTILE_NAME,
]
ODD += [
    "10:30:00",
    "1-2",
    "2-1",
    "0-9",
    "0-9:0",
    "0-4000000",
    "0-9%0",
    "%4",
    "node[1-9999]",
    "lr=1,2",
    "lr=",
    "seed=" + ",".join(map(str, range(2000))),
    "mem=1",
    "A=file:keyring.yaml",
]
RIGHT = {
    "name": ["t", "a-b"],
    "command": ["train.py", "train.py --lr {lr}", "[train.py, --x]", "python train.py", "python -m train", "[python, -u, train.py]", "./train.py"],
    "image": ["x.sqsh", "images/x.sif", "docker://ubuntu"],
    "nodes": ["1", "2-4", "8"],
    "time": ["10", "1:00:00", "1-0"],
    "workdir": [".", "/"],
    "mounts": ["[.:/data]", "[/etc:/etc:ro]", "[{source: ., target: /data}]"],
    "env": ["{A: b}", "{A: ''}"],
    "secrets": ["[HOME]", "{A: env}", "{A: {file: keyring.yaml}}", "{A: {command: 'echo x'}}"],
    "array": ["0-9", "1,4,7%2"],
    "sweep": ["{lr: [1, 2]}", "{lr: [1, 2], seed: [1, 2, 3]}", "[{lr: 1}, {lr: 2}]"],
    "slurm": ["{partition: gpu}", "{mem: 1G, exclusive: }", "{gres: 'gpu:2'}"],
    "cluster": ["site", "generic", "site.yaml"],
    "remap_root": ["true", "no"],
}
NUMBERS = ["0", "1", "2", "16"]
DEEP = [
    "[" * 200 + "]" * 200,
    "{a: " * 200 + "}" * 200,
    "[" * 100_000,
    "- " * 5000,
    "? " * 5000,
    "&a [*a]",
    "&a {b: *a}",
    "*nothing",
    "!!python/object:os.system x",
]
DEEP += [
    "!!binary aGk=",
    "!!int x",
    "!<tag:x> y",
    "!!set {a, b}",
    "|\n  a\n  b",
    ">-\n  a\n\n  b",
    "<<: {a: 1}",
    "{a: 1, a: 2}",
    "{? [a] : b}",
    "{: x}",
    "'",
    '"\\ud800"',
    '"\\x00\\x9b31m"',
]
DEEP += [
    "[a, [b], {c: d}]",
    "{a: {b: {c: d}}}",
    "{lr: []}",
    "{lr: x}",
    "[{lr: 1}, {seed: 2}]",
    "[[]]",
    "[null]",
    "{A: null}",
    "{A: [b]}",
    "2026-01-01",
    "0x10",
    "1_000",
    "yes",
    "%YAML 1.1",
    "@x",
]
DEEP += ["{" + ", ".join(f"n{number}: [{', '.join('0123456789')}]" for number in range(12)) + "}", "[" + "/a:/b, " * 15_000 + "]", "x" * 1_000_001]


def right(key: str) -> list[str]:
    """Values as they should be: of RIGHT, or of the key's declaration."""
    from kit.config import job

    facts = job.KEYS.get(key)
    if key in RIGHT or not facts:
        return RIGHT.get(key, NUMBERS)
    return facts.choices() if facts.choices else list(getattr(facts.parse, "good", NUMBERS))


def odd_value(random: random.Random) -> str:
    if random.random() < 0.4:
        return random.choice(DEEP)
    word = random.choice(ODD).encode("utf-8", "replace").decode()
    quoted = json.dumps(word)
    return random.choice([quoted, quoted, word, f"[{quoted}]", f"{{A: {quoted}}}", f"{{lr: [{quoted}, 2]}}", f"[{quoted}, {quoted}]"])


def odd_key(random: random.Random, key: str) -> str:
    return random.choice([key[:-1], key.upper(), f"{key}s", f'"{key}"', "", "?", "<<", "!!str", *(json.dumps(word) for word in ODD[:20])])


def job_file(random: random.Random, keys: list[str]) -> bytes:
    """Keys with values as they should be, of which every second file has an odd one."""
    chosen = dict.fromkeys([*["command"] * ("command" in keys), *random.choices(keys, k=random.choice([1, 1, 2, 3, 6]))])
    lines = {key: random.choice(right(key)) for key in chosen}
    if random.random() < 0.5:
        lines[random.choice(list(lines))] = odd_value(random)
    if random.random() < 0.1:
        key = random.choice(list(lines))
        lines[odd_key(random, key)] = lines.pop(key)
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    if random.random() < 0.95:
        return text.encode()
    changed = bytearray(text.encode())
    for _ in range(3):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return random.choice(
        [text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), text.encode("latin-1", "replace"), bytes(changed), random.randbytes(500), b"\0" * 50]
    )


CALLS = [
    ("submit", "job.yaml", "--dry-run"),
    ("submit", "job.yaml", "--dry-run"),
    ("submit", "job.yaml", "--dry-run"),
    ("render", "job.yaml", "--output", "three"),
]
CALLS += [("run", "job.yaml"), ("submit", "job.yaml"), ("submit", "job.yaml", "--test-only"), ("when", "job.yaml"), ("bench", "job.yaml", "--dry-run")]
CALLS += [
    ("shell", "job.yaml", "--local"),
    ("doctor", "job.yaml"),
    ("nodes", "--cluster", "./site.yaml"),
    ("submit", "train.py", "--cluster", "./site.yaml", "--dry-run"),
]


def a_job(place: strangers.Place, random: random.Random) -> tuple[str, ...]:
    """Writes a file, and returns the command that reads it."""
    from kit.config import job, profiles

    words = random.choice(CALLS)
    is_profile = "./site.yaml" in words
    file = place.project / ("site.yaml" if is_profile else "job.yaml")
    file.write_bytes(job_file(random, list(profiles.KEYS) if is_profile else list(job.KEYS)))
    return words


# What the arguments of a command may be, by what its help calls them.
ARGUMENTS = {"[JOB]": ["train.py", "job.yaml"], "RUN": ["one", "1001", "runs/one"], "[RUN]": ["one", "1001"], "-- CMD...": ["true"], "bash|zsh|fish": ["bash"]}


def a_line(place: strangers.Place, random: random.Random) -> tuple[str, ...]:
    """Words for a subcommand: what it needs, its own options with values near right and odd ones, and odd words."""
    from kit.cli import entry
    from kit.config import job

    commands = entry.tree().commands
    command = random.choice(list(commands)) if random.random() < 0.97 else random.choice(["", "--version", "-h", "x", *ODD])
    words, known = [command], commands.get(command)
    if known and getattr(known, "commands", None) and random.random() < 0.5:
        words.append("gc")
        known = known.commands["gc"]
    items = known.params if known else []
    for item in items:
        if (item.required or random.random() < 0.5) and random.random() < 0.95:
            if item.param_type_name == "argument":
                words.append(random.choice(ARGUMENTS.get(item.metavar or "", ["one", "train.py", "images"]) if random.random() < 0.9 else ODD))
            elif item.required:
                words += [item.opts[0], "new"]
    for _ in range(random.choice([0, 1, 1, 2, 3]) if items else 1):
        item = random.choice(items) if items else None
        if not item or item.param_type_name == "argument" or random.random() < 0.15:
            words.append(random.choice([*ODD, "--help", "-h", "--dry-run", "--", "--nope", "-zzz"]))
            continue
        name = random.choice([*item.opts, *item.secondary_opts])
        fitting = right(item.name) if item.name in job.KEYS else [*NUMBERS, "one", "train.py", "images", "new"]
        value = random.choice(fitting if random.random() < 0.6 else ODD)
        words += [name] if item.is_flag else random.choice([[name, value], [f"{name}={value}"]])
    return tuple(word for word in words if word not in ("-f", "--follow"))  # they go on until the job ends


# ---------------------------------------------------------------- where


def build(place: strangers.Place) -> None:
    project = place.project
    os.mkfifo(project / "pipe")
    for name in ("pipe.py", "pipe.yaml"):
        os.mkfifo(project / name)
    (place.home / "config/kit/clusters").mkdir(parents=True)
    (place.home / "config/kit/clusters/site.yaml").write_text("slurm: {account: a}\n")
    for name, text in {
        "train.py": "import torch\n",
        "job.yaml": "command: train.py\n",
        "keyring.yaml": "A: one\n",
        "x.sqsh": "hsqs",
        "Dockerfile": "FROM busybox@sha256:" + "0" * 64,
    }.items():
        (project / name).write_text(text)
    (project / "keyring.yaml").chmod(0o600)
    place.tool("sbatch", "echo 1001")
    assert strangers.call("submit", "train.py", "--output", "runs/one").code == 0
    place.tool("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid partition specified' >&2; exit 1")
    (project / "runs/one/log/1001").mkdir()
    (project / "runs/one/log/1001/rank0.out").write_text("epoch 1\n")


def main(scratch: str, count: str, seed: str) -> None:
    place = strangers.Place(Path(scratch))
    strangers.load_kit()
    build(place)
    place.keep()
    begun_s, slowest_s = time.monotonic(), 0.0
    for number in range(int(count)):
        chosen = random.Random(f"{seed} {number}")
        if number % 20 == 0 or place.is_changed():
            place.restore()
        before = place.untouched()
        words = (a_job if chosen.random() < 0.5 else a_line)(place, chosen)
        done = strangers.call(*words)
        slowest_s = max(slowest_s, done.elapsed_s)
        problem = strangers.wrong(words, done) or ("it changed what is outside" if place.untouched() != before else "")
        if problem:
            written = Path("site.yaml" if "./site.yaml" in words else "job.yaml").read_bytes()[:600]
            said = done.out[-300:] + done.errors[-1500:]
            print(f"[{seed} {number}] kit {' '.join(word[:80] for word in words)!r}: {problem}\n{written!r}\n{said!r}\n")
    print(f"{count} inputs, {time.monotonic() - begun_s:.0f} s, the slowest {slowest_s:.2f} s", file=sys.stderr)


def test_generated_input_ends_in_no_other_way_than_with_a_line(tmp_path: Path) -> None:
    done = strangers.confined(__file__, tmp_path, str(INPUTS), str(SEED))
    print(done.stderr)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout[-20_000:] + done.stderr[-2000:]


if __name__ == "__main__":
    main(*sys.argv[1:])
