"""A job's secrets: named in the job, read at submission, and in a file of the run directory until the run has ended.

The file is no part of the record: `NAME=value` entries that end in NUL, as in /proc/PID/environ, in a folder that only its
owner can read. launch/scripts/secrets.sh reads and removes it. Nothing here puts a value into a message.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from kit import given, regular, remove, tokens, values
from kit.errors import KitError, Problems, did_you_mean
from kit.given import Given

if TYPE_CHECKING:
    import subprocess

    from kit.plan import Plan

FOLDER = ".secrets"  # in the run directory
MOST_BYTES = (128 << 10) - 256  # Linux starts no program with a longer variable
PATIENCE_S = 120  # for a command that asks a server, or a person
SOURCES = ("env", "file", "command")
_HOW = "write `NAME: env`, `NAME: {file: PATH}` or `NAME: {command: COMMAND}`; the value itself belongs into no job file"


class Secret(NamedTuple):
    name: str
    source: str  # env, file or command
    at: str  # the variable's name, the keyring file's path, or the command
    where: str


Secrets = tuple[Secret, ...]

# ---------------------------------------------------------------- as the user names them


def parse(given: Given, problems: Problems) -> Optional[dict[str, Secret]]:
    """A list of names takes all from the environment; a mapping says for each name where its value is."""
    if isinstance(given.value, list):
        items = {str(item.value): Given("env", item.where) for item in given.value if isinstance(item.value, str)}
        if len(items) < len(given.value):
            problems.add(given.where, "a secret has no name, or is named twice", "write `secrets: [HF_TOKEN, WANDB_API_KEY]`")
    elif isinstance(given.value, dict):
        items = given.value
    else:
        problems.add(given.where, "expected the names of variables", "write `secrets: [HF_TOKEN, WANDB_API_KEY]`; docs/secrets.md has more")
        return None
    found = (_one(name, item, problems) for name, item in items.items())
    return {secret.name: secret for secret in found if secret}


def given_as_words(option: str, words: list[str], problems: Problems) -> Given:
    """NAME, NAME=env:OTHER, NAME=file:PATH and NAME=command:COMMAND words of the command line, as a job file would have them."""
    mapping: dict[str, Given] = {}
    for word in words:
        name, equals, text = word.partition("=")
        source, _, at = text.partition(":")
        if not equals or text == "env":
            mapping[name] = Given("env", option)
        elif source in SOURCES:
            mapping[name] = Given({source: Given(at, option)}, option)
        else:
            fix = f"write {option} NAME, {option} NAME=file:PATH or {option} NAME=command:COMMAND; process lists and the shell's history show a value"
            problems.add(option, f"what follows {_shown(name)}= does not say where its value is", fix)
    return Given(mapping, option)


def _one(name: str, item: Given, problems: Problems) -> Optional[Secret]:
    if tokens.kind(name):
        problems.add(item.where, "a secret's value stands where its name belongs", "write `secrets: [NAME]`: kit reads the value from your environment")
        return None
    if not values.settable(name, item.where, problems):
        return None
    if item.value == "env":
        return Secret(name, "env", name, item.where)
    if not isinstance(item.value, dict) or len(item.value) != 1:
        problems.add(item.where, f"{name} does not say where its value is", _HOW)
        return None
    ((source, at),) = item.value.items()
    if source not in SOURCES:
        problems.add(item.where, f"{name} has a source that kit does not know", did_you_mean(source, list(SOURCES), _HOW))
    elif not isinstance(at.value, str) or not at.value or "\0" in at.value:
        problems.add(item.where, f"the {source} of {name} is not named", _HOW)
    elif source == "env" and not values.ENV_NAME.match(at.value):
        problems.add(item.where, f"the environment can have no variable such as the one named for {name}", _HOW)
    else:
        tokens.refuse_text(f"the {source} of {name}", at.value, item.where, problems)
        return Secret(name, source, at.value, item.where)
    return None


def anchored(named: dict[str, Secret], base: Path) -> dict[str, Secret]:
    """With the paths of keyring files made absolute; relative ones start at `base`."""
    from kit.job import absolute

    return {name: secret._replace(at=absolute(secret.at, base)) if secret.source == "file" else secret for name, secret in named.items()}


def _shown(name: str) -> str:
    return name if values.ENV_NAME.match(name) else "it"


def resolve(named: dict[str, Secret], job_env: dict[str, str], problems: Problems) -> Secrets:
    """All of them; one that is given as a plain variable, too, is a problem."""
    for secret in named.values():
        if secret.name in job_env:
            problems.add(secret.where, f"{secret.name} is among the variables of `env`, too, where every record shows it", "take it out of `env`")
    return tuple(named.values())


# ---------------------------------------------------------------- at submission


def place(plan: Plan, run: Path, tasks: Optional[list[int]] = None) -> None:
    """Reads the values and puts them where the ranks look; each task of an array has a file of its own, to remove at its end.

    What kit starts after that no longer has them in its environment: Slurm keeps that of sbatch. Raises UsageError with every
    secret that cannot be read, and KitError where the file cannot be written.
    """
    if not plan.secrets:
        return
    content = b"".join(os.fsencode(name) + b"=" + value + b"\0" for name, value in read(plan.secrets, plan.workdir).items())
    hide_from_children(plan.secrets)
    if tasks is None and plan.array:
        from kit import arrays

        tasks = arrays.numbers(plan.array)
    folder = run / FOLDER
    try:
        folder.mkdir(mode=0o700)
        # A run directory may be in a checkout, and `git add .` takes what it finds.
        (folder / ".gitignore").write_text("*\n")
        first, *others = [folder / str(task) for task in tasks] if tasks else [folder / "values"]
        _write(first, content)
        for file in others:
            _link(first, file, content)
    except OSError as error:
        forget(run)
        raise KitError(f"cannot write the job's secrets to {folder}: {error.strerror}", "free space or quota: df -h, quota -s") from None


def _write(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)


def _link(first: Path, file: Path, content: bytes) -> None:
    """One file under many names, where the file system can do that: it is gone with the last of them."""
    try:
        os.link(first, file)
    except OSError:
        _write(file, content)


def hide_from_children(secrets: Secrets) -> None:
    for secret in secrets:
        for name in (secret.name, secret.at if secret.source == "env" else secret.name):
            os.environ.pop(name, None)


def forget(run: Path, task: Optional[int] = None) -> None:
    """Removes the values of a run that has ended or will not start; those of one task of an array."""
    import contextlib

    with contextlib.suppress(OSError, KitError):
        if task is None:
            remove.tree(run / FOLDER, re.escape(FOLDER))
        else:
            (run / FOLDER / str(task)).unlink()


def read(secrets: Secrets, workdir: str) -> dict[str, bytes]:
    """Every value by its variable's name. Raises UsageError with all that have none."""
    problems = Problems()
    keyrings: dict[str, dict[str, Given]] = {}
    found = {}
    for secret in secrets:
        if secret.source == "file" and secret.at not in keyrings:
            keyrings[secret.at] = _keyring(secret, problems)
        before = len(problems.found)
        value = _value(secret, keyrings, workdir, problems)
        if value is not None and len(problems.found) == before:
            found[secret.name] = _checked(secret, value, problems)
    problems.raise_if_any()
    return found


def _value(secret: Secret, keyrings: dict[str, dict[str, Given]], workdir: str, problems: Problems) -> Optional[bytes]:
    if secret.source == "env":
        value = os.environb.get(os.fsencode(secret.at))
        if value is None:
            problems.add(
                secret.where, f"{secret.at} is not set in the environment", f"export {secret.at} before you submit, or name a file or a command for it"
            )
        return value
    if secret.source == "command":
        return _output(secret, workdir, problems)
    entry = keyrings[secret.at].get(secret.name)
    if entry is None:
        if keyrings[secret.at]:
            problems.add(secret.where, f"{secret.at} has no {secret.name}", f"add a line `{secret.name}: VALUE` to it")
        return None
    if not isinstance(entry.value, str):
        problems.add(entry.where, f"{secret.name} has no text for a value", "write it on the same line; in quotes where it holds other than letters and digits")
        return None
    return os.fsencode(entry.value)


def _checked(secret: Secret, value: bytes, problems: Problems) -> bytes:
    if not value:
        problems.add(secret.where, f"the value of {secret.name} is empty ({_source(secret)})", "give it one, or leave the secret out")
    elif b"\0" in value:
        problems.add(secret.where, f"the value of {secret.name} contains a NUL byte, which no program can receive", "encode it: base64")
    elif len(value) > MOST_BYTES:
        problems.add(
            secret.where, f"the value of {secret.name} has {len(value)} bytes, too many for a variable", "give the job the name of a file that it reads"
        )
    return value


def _source(secret: Secret) -> str:
    return {"env": f"the environment's {secret.at}", "file": secret.at, "command": f"what `{secret.at}` prints"}[secret.source]


def _output(secret: Secret, workdir: str, problems: Problems) -> Optional[bytes]:
    """What a line of shell prints, but for its last newline; of what it says otherwise nothing is shown."""
    import subprocess

    try:
        # In kit's own process group, so that it may ask on the terminal.
        process = subprocess.Popen(["bash", "-c", secret.at], cwd=workdir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        problems.add(secret.where, f"the command for {secret.name} cannot be started: {error.strerror}", f"try it by itself: {secret.at}")
        return None
    try:
        output = _until_end(process)
    except BaseException as error:
        _end(process.pid)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        problems.add(secret.where, f"the command for {secret.name} has not ended after {PATIENCE_S} s", f"try it by itself: {secret.at}")
        return None
    if process.returncode:
        problems.add(secret.where, f"the command for {secret.name} ended with exit code {process.returncode}", f"try it by itself: {secret.at}")
        return None
    return output[:-1] if output.endswith(b"\n") else output


def _until_end(process: subprocess.Popen[bytes]) -> bytes:
    """What the shell prints until it ends itself: an agent that it leaves in the background may hold its output open for days."""
    import select
    import subprocess
    import time

    assert process.stdout
    end_s, found = time.monotonic() + PATIENCE_S, b""
    with process.stdout as pipe:
        while time.monotonic() < end_s:
            has_ended = process.poll() is not None  # asked first: then all that it printed is in the pipe
            readable, _, _ = select.select([pipe], [], [], 0 if has_ended else 0.05)
            chunk = os.read(pipe.fileno(), 1 << 16) if readable else b""
            found += chunk
            if len(found) > 2 * MOST_BYTES or (has_ended and not chunk):
                return found  # what is longer is refused
            if readable and not chunk:
                process.wait(end_s - time.monotonic())
    raise subprocess.TimeoutExpired(process.args, PATIENCE_S)


def _end(process: int) -> None:
    """Ends a process and what it started; where there is no /proc, the process alone."""
    import contextlib
    import signal

    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in file.read_text().split():
                _end(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _keyring(secret: Secret, problems: Problems) -> dict[str, Given]:
    """The NAME: value lines of a file that nobody else can read. YAML's own messages may quote a value, and are not shown."""
    path = secret.at
    try:
        with regular.opened(path) as file:
            facts = os.fstat(file.fileno())
            text = file.read(given.MOST_BYTES + 1)
    except OSError as error:
        problems.add(secret.where, f"the file for {secret.name}, {path}, cannot be read: {error.strerror}", "check the path and the file's rights")
        return {}
    mode = stat.S_IMODE(facts.st_mode)
    if len(text) > given.MOST_BYTES:
        problems.add(secret.where, f"{path} is longer than {given.MOST_BYTES // 10**6} MB", "name the file with the NAME: value lines")
    elif facts.st_uid != os.getuid():
        problems.add(secret.where, f"{path} belongs to somebody else, who may have read and written it", f"make one of your own: install -m 600 {path} NEW")
    elif mode & 0o077:
        fix = f"chmod 600 {path}; and as others may have read it, ask for new secrets"
        problems.add(secret.where, f"{path} is open to others: its mode is {mode:04o}, not 0600", fix)
    else:
        return _lines(path, text, problems)
    return {}


def _lines(path: str, text: bytes, problems: Problems) -> dict[str, Given]:
    import yaml

    try:
        root = given.compose(text.decode(), path)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problems.add(f"{path}{line}", "this is no line of YAML", "write NAME: 'value', in quotes; a quote inside is doubled")
        return {}
    except (yaml.YAMLError, UnicodeDecodeError):
        problems.add(path, "not all of this is UTF-8 text in NAME: value lines", "take a command that prints the value, for one that is no text")
        return {}
    found = given.mapping(root, path, problems) if root else {}
    if not found:
        problems.add(path, "expected `NAME: value` lines", "write one for each secret")
    return found
