"""Read the values of a job's secrets from the environment, from files and from commands.

Nothing here puts a value into a message.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Optional

import yaml

from kit.base import quote
from kit.base.errors import Problems
from kit.config import yaml_source
from kit.config.secrets import Secret, Secrets
from kit.config.yaml_source import Located
from kit.files import safe_read

MOST_BYTES = (128 << 10) - 256  # Linux starts no program with a longer variable
PATIENCE_S = 120  # for a command that asks a server, or a person


def read(secrets: Secrets, workdir: str) -> dict[str, bytes]:
    """Return each value by its variable's name. Raise UsageError with all secrets without one."""
    problems = Problems()
    keyrings: dict[str, dict[str, Located]] = {}
    found = {}
    for secret in secrets:
        if secret.source == "file" and secret.at not in keyrings:
            keyrings[secret.at] = _keyring(secret, problems)
        value = _value(secret, keyrings, workdir, problems)
        if value is not None:
            _check(secret, value, problems)
            found[secret.name] = value
    problems.raise_if_any()
    return found


def _value(
    secret: Secret, keyrings: dict[str, dict[str, Located]], workdir: str, problems: Problems
) -> Optional[bytes]:
    """Return the value of a secret; None, with a problem, where it cannot be read."""
    if secret.source == "env":
        value = os.environb.get(os.fsencode(secret.at))
        if value is None:
            fix = f"export {secret.at} before you submit, or name a file or a command for it"
            problems.add(secret.where, f"{secret.at} is not set in the environment", fix)
        return value
    if secret.source == "command":
        return _output(secret, workdir, problems)
    entry = keyrings[secret.at].get(secret.name)
    if entry is None:
        if keyrings[secret.at]:
            fix = f"add a line `{secret.name}: VALUE` to it"
            problems.add(secret.where, f"{secret.at} has no {secret.name}", fix)
        return None
    if not isinstance(entry.value, str):
        fix = "write it on the same line; in quotes where it holds other than letters and digits"
        problems.add(entry.where, f"{secret.name} has no text for a value", fix)
        return None
    return os.fsencode(entry.value)


def _check(secret: Secret, value: bytes, problems: Problems) -> None:
    """Note a problem for a value that no program can receive as a variable."""
    if not value:
        problem, fix = f"is empty ({_source(secret)})", "give it one, or leave the secret out"
    elif b"\0" in value:
        problem = "contains a NUL byte, which no program can receive"
        fix = (
            "if a file has it, save that as UTF-8 (PowerShell writes UTF-16); or encode it: base64"
        )
    elif len(value) > MOST_BYTES:
        problem = f"has {len(value)} bytes, too many for a variable"
        fix = "give the job the name of a file that it reads"
    else:
        return
    problems.add(secret.where, f"the value of {secret.name} {problem}", fix)


def _source(secret: Secret) -> str:
    return {
        "env": f"the environment's {secret.at}",
        "file": secret.at,
        "command": f"what `{secret.at}` prints",
    }[secret.source]


def _output(secret: Secret, workdir: str, problems: Problems) -> Optional[bytes]:
    """Return the output of a shell command without its last newline; its errors are not shown."""
    try:
        code, output = _run(secret.at, workdir)
        if not code:
            return re.sub(rb"\r?\n\Z", b"", output)  # a file of Windows ends its lines in both
        problem = f"ended with exit code {code}"
    except OSError as error:
        problem = f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        problem = f"has not ended after {PATIENCE_S} s"
    fix = f"try it by itself: {secret.at}"
    problems.add(secret.where, f"the command for {secret.name} {problem}", fix)
    return None


def _run(command: str, workdir: str) -> tuple[int, bytes]:
    """Return a command's exit code and output. Raise OSError or TimeoutExpired."""
    # In kit's own process group, so that it may ask on the terminal.
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=workdir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output = _until_end(process)
    except BaseException:
        _end(process.pid)
        process.wait()
        raise
    return process.returncode or 0, output


def _until_end(process: subprocess.Popen[bytes]) -> bytes:
    """Return what the shell prints until it ends.

    An agent that it leaves in the background may hold its output open for days.
    """
    assert process.stdout
    end_s, found = time.monotonic() + PATIENCE_S, b""
    with process.stdout as pipe:
        while time.monotonic() < end_s:
            # Asked first: then all that it printed is in the pipe.
            has_ended = process.poll() is not None
            readable, _, _ = select.select([pipe], [], [], 0 if has_ended else 0.05)
            chunk = os.read(pipe.fileno(), 1 << 16) if readable else b""
            found += chunk
            if len(found) > 2 * MOST_BYTES or (has_ended and not chunk):
                return found  # what is longer is refused
            if readable and not chunk:
                process.wait(end_s - time.monotonic())
    raise subprocess.TimeoutExpired(process.args, PATIENCE_S)


def _end(process: int) -> None:
    """End a process and its descendants; without /proc, the process alone.

    It is stopped first: what it starts after its children are listed would stay.
    """
    _stop(process)
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in file.read_text().split():
                _end(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _stop(process: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, signal.SIGSTOP)
        state, end_s = Path(f"/proc/{process}/stat"), time.monotonic() + 1
        while state.read_text().rpartition(")")[2].split()[0] not in "TZX":
            if time.monotonic() > end_s:
                return
            time.sleep(0.001)


def _keyring(secret: Secret, problems: Problems) -> dict[str, Located]:
    """Return the NAME: value lines of a file that nobody else can read."""
    path = secret.at
    try:
        with safe_read.opened(path) as file:
            facts = os.fstat(file.fileno())
            text = file.read(yaml_source.MOST_BYTES + 1)
    except OSError as error:
        problem = f"the file for {secret.name}, {path}, cannot be read: {error.strerror}"
        problems.add(secret.where, problem, "check the path and the file's rights")
        return {}
    mode = stat.S_IMODE(facts.st_mode)
    if len(text) > yaml_source.MOST_BYTES:
        problem = f"is longer than {yaml_source.MOST_BYTES // 10**6} MB"
        fix = "name the file with the NAME: value lines"
    elif facts.st_uid != os.getuid():
        problem = "belongs to somebody else, who may have read and written it"
        fix = f"make one of your own: install -m 600 {path} NEW"
    elif mode & 0o077:
        problem = f"is open to others: its mode is {mode:04o}, not 0600"
        fix = f"chmod 600 {path}; and as others may have read it, ask for new secrets"
    else:
        return _lines(secret, text, problems)
    problems.add(secret.where, f"{path} {problem}", fix)
    return {}


def _lines(secret: Secret, text: bytes, problems: Problems) -> dict[str, Located]:
    """Return the entries of such a file. YAML's own messages may quote a value, and are hidden."""
    path = secret.at
    try:
        root = yaml_source.compose(text.decode(), path)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fix = "write NAME: 'value', in quotes; a quote inside is doubled"
        problems.add(f"{path}{line}", "this is not a line of YAML", fix)
        return {}
    except (yaml.YAMLError, UnicodeDecodeError):
        fix = "take a command that prints the value, for a value that is not text"
        problems.add(path, "not all of this is UTF-8 text in NAME: value lines", fix)
        return {}
    found = yaml_source.mapping(root, path, problems) if root else {}
    if not found:
        bare = f"{secret.name}: {{command: cat {quote.bash(path)}}}"
        fix = f"write one for each secret; or, for a file of nothing but the value, `{bare}`"
        problems.add(secret.where, f"expected `NAME: value` lines in {path}", fix)
    return found
