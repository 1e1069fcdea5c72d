"""Choose which variables of the submitting shell a job inherits, as docs/environment.md describes.

An inherited variable becomes a variable of the job like those of `env`, so it is in env.sh and in
run.json. That is why a secret is never inherited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from fnmatch import fnmatchcase
from typing import Optional

from kit.base import redact
from kit.base.errors import Problems
from kit.config import values, variables
from kit.config.yaml_source import Located

PATTERN = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*\Z")
NONE = "none"
_HOW = "write names and patterns, `inherit: [NCCL_DEBUG, HF_*]`, or `all`, or `none`"
# Fabrics, frameworks and clients of S3 read these: a user who has set one relies on it.
WELL_KNOWN = """
    NCCL_* RCCL_* UCX_* FI_* GLOO_* CUDA_* OMP_* TORCH_* PYTORCH_* XLA_* HF_* WANDB_* AWS_PROFILE
    AWS_*KEY* AWS_SESSION_TOKEN AWS_ENDPOINT_URL*
""".split()
# These describe the login node and the shell, not the program: a name inherits them, no pattern.
_OF_THE_HOST = """
    PATH LD_LIBRARY_PATH LD_PRELOAD MANPATH INFOPATH PYTHONPATH PYTHONHOME VIRTUAL_ENV* CONDA_*
    _CONDA_* _CE_* MODULE* LMOD_* __LMOD_* LOADEDMODULES _LMFILES_* _ModuleTable* HOME USER LOGNAME
    SHELL HOST HOSTNAME MAIL TERM TERM_* COLORTERM COLUMNS LINES DISPLAY XAUTHORITY LS_COLORS LESS*
    HISTFILE HISTSIZE PS1 PROMPT_COMMAND debian_chroot TMPDIR XDG_* DBUS_* SSH_* TMUX* STY WINDOW
    WINDOWID WINDOWPATH ZELLIJ* TTY GPG_TTY GPG_AGENT_INFO COLORFGBG VTE_VERSION GNOME_TERMINAL_*
    KONSOLE_* SHELL_SESSION_ID ITERM_* LC_TERMINAL* KITTY_* WEZTERM_* ALACRITTY_* GHOSTTY_* TILIX_ID
    VSCODE_* WT_SESSION WT_PROFILE_ID DIRENV_* SYSTEMD_EXEC_PID MEMORY_PRESSURE_*
    INVOCATION_ID JOURNAL_STREAM KRB5CCNAME BASH* CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES
    ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL SLURM* SBATCH_*
    SRUN_* SALLOC_* SQUEUE_* SINFO_* PMI_* PMIX_* OMPI_COMM_* ENROOT_* APPTAINER* SINGULARITY*
    DOCKER_* KIT_*
""".split()


def parse(given: Located, problems: Problems) -> Optional[tuple[str, ...]]:
    """Return the names and patterns; an empty tuple means that the job wants none.

    Beside others, NONE stays for `add`.
    """
    words = [str(item.value) for item in given.items() if _check_word(item, problems)]
    if set(words) == {NONE}:
        return ()
    return tuple("*" if word == "all" else word for word in words)


def add(of_file: tuple[str, ...], of_option: tuple[str, ...]) -> tuple[str, ...]:
    """Return both; `--inherit none` withdraws what the file says."""
    return of_option if not of_option or NONE in of_option else (*of_file, *of_option)


def telling(taken: Mapping[str, str]) -> dict[str, str]:
    """Return those by which a loop may tell its jobs apart: S=1 kit submit job.yaml.

    Not PATH: another shell of the same user finds the same programs by another one.
    """
    return {name: value for name, value in taken.items() if name != "PATH"}


def _check_word(item: Located, problems: Problems) -> bool:
    """Return True for a name or a pattern; note a problem for anything else."""
    word = item.value
    if not isinstance(word, str) or not PATTERN.match(word) or word.lower() in values.FLAGS:
        problem = f"expected a variable's name or a pattern, not {values.kind(item)}"
        problems.add(item.where, problem, f"{_HOW}; a variable with its value goes under `env`")
        return False
    return not _is_name(word) or variables.settable(word, item.where, problems)


def _is_name(word: str) -> bool:
    return "*" not in word and "?" not in word


def by_name(wanted: Optional[tuple[str, ...]]) -> set[str]:
    """Return the variables of this shell whose names are spelt out: the job wants these values."""
    return {word for word in wanted or () if _is_name(word) and word in os.environ}


def take(
    wanted: Optional[tuple[str, ...]], where: str, named: Container[str], problems: Problems
) -> dict[str, str]:
    """Return the variables that the job inherits, and warn of those that its user may miss.

    `named` holds the variables that the job and the profile set themselves, secrets included.
    """
    words = tuple(word for word in wanted or () if word != NONE)
    shell = {
        name: value
        for name, value in os.environ.items()
        if name not in named and variables.ENV_NAME.match(name)
    }
    taken = {name: value for name, value in shell.items() if _is_wanted(name, words)}
    secrets = sorted(name for name, value in taken.items() if is_secret(name, value))
    for name in filter(_is_name, words):
        if name in secrets:
            problem = (
                f"{name} looks like a secret, and what `inherit` takes is in env.sh and in run.json"
            )
            problems.add(where, problem, f"write `secrets: [{name}]`")
        elif name not in shell and name not in named:
            fix = "export it before you submit, or take it out of `inherit`"
            problems.warn(where, f"this shell has no {name} to inherit", fix)
    if left_out := ", ".join(name for name in secrets if name not in words):
        problem = f"`inherit` leaves out what looks like a secret: {left_out}"
        problems.warn(where, problem, f"write `secrets: [{left_out}]`")
    missed = sorted(name for name in shell if name not in taken and _is_well_known(name))
    # What the user drops is not missed.
    is_dropped = wanted is not None and (not words or NONE in wanted)
    if missed and not is_dropped:
        _warn_of_missed(missed, shell, where, problems)
    return {name: value for name, value in sorted(taken.items()) if name not in secrets}


def _is_wanted(name: str, wanted: tuple[str, ...]) -> bool:
    if name in wanted:
        return True
    matches = any(fnmatchcase(name, word) for word in wanted) and not _is_any(name, _OF_THE_HOST)
    return matches and variables.settable(name, "", Problems())


def _is_any(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_well_known(name: str) -> bool:
    if not _is_any(name, WELL_KNOWN):
        return False
    # An image's NCCL_VERSION describes the image, and a module's CUDA_HOME the host.
    is_of_a_place = re.search(r"_(VERSION|HOME|PATH|ROOT|DIR|BASE)\Z", name)
    if name in ("HF_HOME", "TORCH_HOME"):  # where models are kept, for the user to choose
        return True
    return not (is_of_a_place or _is_any(name, _OF_THE_HOST))


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret, by its name or by the form of its value."""
    return redact.is_secret(name) or redact.kind(value, name) is not None


def _warn_of_missed(
    missed: list[str], shell: Mapping[str, str], where: str, problems: Problems
) -> None:
    secrets = [name for name in missed if is_secret(name, shell[name])]
    plain = [name for name in missed if name not in secrets]
    keys = {"inherit": plain, "secrets": secrets}
    fixes = [f"`{key}: [{', '.join(names)}]`" for key, names in keys.items() if names]
    # An image has no ~/.aws, and botocore refuses a profile without it, though it has keys.
    files = " (an image lacks the profile's files: docs/secrets.md)"
    words = " and ".join(fixes) + files * ("AWS_PROFILE" in plain)
    problems.warn(
        where,
        f"the ranks do not get {', '.join(missed)} of this shell, which the job does not name",
        f"write {words}; or `inherit: none`, if the program does not need them",
    )
