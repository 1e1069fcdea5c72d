"""Find files that hold keys: kit does not copy them, unless git tracks them.

A file that is named like a key may be a model.key or a public certificate. It is not copied
either: beside the copy of the code it is a link, so the program finds it as before, and `git add`
allows the copy.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress

from kit.base import formats, redact
from kit.files import safe_read

FOLDERS = frozenset(
    ".ssh .gnupg .aws .azure .gcloud .kube .docker .config .oci .secrets .password-store "
    ".huggingface .kaggle .databricks .1password .vault".split()
)
NAMES = frozenset(
    ".netrc _netrc .pgpass .my.cnf .mylogin.cnf .git-credentials .npmrc .pypirc .htpasswd "
    ".dockercfg .dockerconfigjson .s3cfg .boto .renviron .databrickscfg .vault-token .histfile "
    "rclone.conf kubeconfig kaggle.json application_default_credentials.json accesskeys.csv".split()
)
# Not id_*: an id_map.json is data.
BEGINNINGS = (".env", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
ENDINGS = (".pem", ".key", ".p12", ".pfx", ".pkcs12", ".jks", ".keystore", ".kdbx", ".ppk", ".env")
# Names of files of settings or text. Not `tokens`: a vocabulary is called tokens.txt.
WORDS = frozenset(
    "token access_token auth_token hf_token github_token gitlab_token wandb_token api_key apikey "
    "api-key wandb_api_key openai_api_key password passwords passwd secret secrets credential "
    "credentials client_secret client-secret service_account service-account private_key "
    "private-key".split()
)
SETTINGS = ("", ".txt", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".csv")
LONGEST = 1 << 20  # bytes of a file in whose text a token is looked for
NOT_RECORDED = "(it looks like a key: its changes are not recorded)"
NOT_COPIED = "{} looks like a key, or has one in its text, and is not copied"
COPIED = "these look like keys, and are copied, since git tracks them: {}"


def is_key(path: str) -> bool:
    """Return whether a file or a folder of the path is named like a key or a place for keys."""
    *folders, name = path.lower().split("/")
    if not FOLDERS.isdisjoint(folders) or name in NAMES or name.endswith(ENDINGS):
        return True
    if name.startswith(BEGINNINGS) and not name.endswith(".pub"):
        return True
    stem, ending = os.path.splitext(name.lstrip("."))
    if ending in SETTINGS and (stem in WORDS or stem.startswith("client_secret_")):
        return True
    return name.startswith(".") and name.endswith("_history")


def among(root: str, names: Iterable[str], keyrings: Iterable[str] = ()) -> list[str]:
    """Return the files of the folder that are keys by name or by text, or are `keyrings`.

    A keyring may have another name here. A symbolic link is no key: it is copied as a link.
    """
    of_keyrings = set()
    for file in keyrings:
        with suppress(OSError):  # whoever needs it says so
            facts = os.stat(file)
            of_keyrings.add((facts.st_dev, facts.st_ino))
    return [name for name in names if _is_one(root, name, of_keyrings)]


def _is_one(root: str, name: str, of_keyrings: Collection[tuple[int, int]]) -> bool:
    path = os.path.join(root, name)
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISREG(facts.st_mode):
        return False
    if (facts.st_dev, facts.st_ino) in of_keyrings:
        return True
    text = _text(path) if facts.st_size <= LONGEST else ""
    if redact.kind(text):
        return True
    is_public = name.endswith(".pem") and "-----BEGIN CERTIFICATE-----" in text
    return is_key(name) and not is_public


def _text(path: str) -> str:
    """Return a file's text; "" where it cannot be read, or is not text."""
    try:
        content = safe_read.start(path, LONGEST)
    except OSError:
        return ""  # whoever copies it says so
    return "" if b"\0" in content[:8192] else content.decode("latin-1")


def cut(diff: str) -> str:
    """Return a diff of git without the changes of files that are keys or hold one."""
    return "".join(map(_cut_section, sections(diff)))


def sections(diff: str) -> list[str]:
    """Return the parts of a diff of git, one for each file."""
    return re.split(r"(?m)^(?=diff --git )", diff)


def _cut_section(section: str) -> str:
    header = section.partition("\n")[0]
    words = re.split(r'[\s"]+', header) if header.startswith("diff --git ") else []
    is_of_a_key = any(map(is_key, words)) or redact.kind(section) is not None
    return f"{header}\n{NOT_RECORDED}\n" if is_of_a_key else section


def shown(names: Collection[str]) -> str:
    """Return the first of the names, for one line."""
    printable = [name if name.isprintable() else repr(name) for name in sorted(names)]
    return formats.first(printable, 5)
