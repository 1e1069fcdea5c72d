"""The submitting shell's variables: which of them a job takes along, and which its user may miss. docs/environment.md has the rule.

What is taken becomes a variable of the job like those of `env`, so it is in env.sh and in run.json, and a secret never is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from fnmatch import fnmatchcase
from typing import Optional

from kit import tokens, values
from kit.errors import Problems
from kit.given import Given

PATTERN = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*\Z")
FLAGS = ("true", "false")
_HOW = "write names and patterns, `inherit: [NCCL_DEBUG, HF_*]`, or `all`, or `none`"
# What fabrics and frameworks read: who has set one of these counts on it.
WELL_KNOWN = "NCCL_* RCCL_* UCX_* FI_* GLOO_* CUDA_* OMP_* TORCH_* PYTORCH_* XLA_* HF_* WANDB_*".split()
# What tells of the login node and the shell, not of the program: no pattern takes it, a name does.
_OF_THE_HOST = """
    PATH LD_LIBRARY_PATH LD_PRELOAD MANPATH INFOPATH PYTHONPATH PYTHONHOME VIRTUAL_ENV* CONDA_* _CONDA_* _CE_* MODULE* LMOD_* __LMOD_* LOADEDMODULES
    _LMFILES_* _ModuleTable* HOME USER LOGNAME SHELL HOST HOSTNAME MAIL TERM TERM_* COLORTERM COLUMNS LINES DISPLAY XAUTHORITY LS_COLORS LESS* HISTFILE
    HISTSIZE PS1 PROMPT_COMMAND TMPDIR XDG_* DBUS_* SSH_* TMUX* STY WINDOW INVOCATION_ID JOURNAL_STREAM KRB5CCNAME BASH* CUDA_VISIBLE_DEVICES
    ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL SLURM* SBATCH_* SRUN_* SALLOC_* SQUEUE_* SINFO_* PMI_* PMIX_* OMPI_COMM_*
    ENROOT_* APPTAINER* SINGULARITY* DOCKER_* KIT_*
""".split()
_SECRET = re.compile(r"(TOKEN|(SECRET|KEY(ID)?|PASS(WORD|WD|PHRASE)?|PWD|CRED(ENTIAL)?|COOKIE)S?|AUTH|DSN|CONNECTION_?STRING)(_|\Z)", re.IGNORECASE)
# Without a container the ranks find programs and libraries as this shell does: Slurm passes these on, and the record says them.
FINDING = """
    PATH LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LOADEDMODULES LANG LC_ALL TZ TMPDIR
""".split()


def parse(given: Given, problems: Problems) -> Optional[tuple[str, ...]]:
    """Return the names and patterns; an empty tuple means that the job wants none."""
    words = [str(item.value) for item in (given.value if isinstance(given.value, list) else [given]) if _is_sound(item, problems)]
    return tuple("*" if word == "all" else word for word in words if word != "none")


def _is_sound(item: Given, problems: Problems) -> bool:
    word = item.value
    if not isinstance(word, str) or not PATTERN.match(word) or word in FLAGS:
        problems.add(item.where, f"expected a variable's name or a pattern, not {values.kind(item)}", f"{_HOW}; a variable with its value goes under `env`")
        return False
    return not _is_name(word) or values.settable(word, item.where, problems)


def _is_name(word: str) -> bool:
    return "*" not in word and "?" not in word


def take(wanted: Optional[tuple[str, ...]], where: str, named: Container[str], problems: Problems) -> dict[str, str]:
    """Return what the job takes of this shell, and warn of what its user may miss. `named`: what the job and the profile say themselves, secrets included."""
    shell = {name: value for name, value in os.environ.items() if name not in named and values.ENV_NAME.match(name)}
    taken = {name: value for name, value in shell.items() if _is_wanted(name, wanted or ())}
    secrets = sorted(name for name, value in taken.items() if is_secret(name, value))
    for name in filter(_is_name, wanted or ()):
        if name in secrets:
            problems.add(where, f"{name} looks like a secret, and what `inherit` takes is in env.sh and in run.json", f"write `secrets: [{name}]`")
        elif name not in shell and name not in named:
            problems.warn(where, f"this shell has no {name} to inherit", "export it before you submit, or take it out of `inherit`")
    if left := [name for name in secrets if name not in (wanted or ())]:
        problems.warn(where, f"`inherit` leaves out what looks like a secret: {', '.join(left)}", f"write `secrets: [{', '.join(left)}]`")
    if wanted != ():
        _warn(sorted(name for name in shell if name not in taken and _is_well_known(name)), shell, where, problems)
    return {name: value for name, value in sorted(taken.items()) if name not in secrets}


def _is_wanted(name: str, wanted: tuple[str, ...]) -> bool:
    if name in wanted:
        return True
    return any(fnmatchcase(name, word) for word in wanted) and not _is_any(name, _OF_THE_HOST) and values.settable(name, "", Problems())


def _is_any(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_well_known(name: str) -> bool:
    # An image's NCCL_VERSION tells of the image, a module's CUDA_HOME of the host.
    return _is_any(name, WELL_KNOWN) and not _is_any(name, _OF_THE_HOST) and not re.search(r"_(VERSION|HOME|PATH|ROOT|DIR|BASE)\Z", name)


def is_secret(name: str, value: str) -> bool:
    return bool(_SECRET.search(name) or tokens.kind(value, name))


def _warn(missed: list[str], shell: Mapping[str, str], where: str, problems: Problems) -> None:
    if not missed:
        return
    secrets = [name for name in missed if is_secret(name, shell[name])]
    plain = [name for name in missed if name not in secrets]
    fixes = [f"`{key}: [{', '.join(names)}]`" for key, names in (("inherit", plain), ("secrets", secrets)) if names]
    what = f"{', '.join(missed)} of this shell {'does' if len(missed) == 1 else 'do'} not go along"
    problems.warn(where, f"{what}: the ranks get what the job names", f"write {' and '.join(fixes)}; or `inherit: none`, which says that they are not needed")


def finding() -> dict[str, str]:
    """Return what Slurm passes on to ranks without a container, for the record."""
    return {name: tokens.hidden(os.environ[name]) for name in FINDING if name in os.environ}
