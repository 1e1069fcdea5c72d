"""Commands of kit that run on the login node of a cluster elsewhere, with this terminal."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from kit import assets, keys, quote, rundir, sources
from kit import cluster as clusters
from kit.cluster import Cluster
from kit.errors import Problems
from kit.job import Job
from kit.remote import submission, there, whole
from kit.remote.there import There
from kit.remote.whole import Copy
from kit.runs.history import Run

PROFILE_KEYS = ("ssh", "ssh_dir")  # over there, kit is on the login node


def elsewhere(name: Optional[str]) -> Optional[Cluster]:
    """The profile of this name, where its cluster is elsewhere. Raises UsageError where it has mistakes: one of them may be why it names no login node."""
    problems = Problems()
    site = clusters.load(name, "--cluster", problems)
    problems.raise_if_any()
    return site if site.ssh else None


def run(site: Cluster, words: Sequence[str]) -> int:
    """Runs `kit WORDS` over there, in kit's own folder, with the cluster's profile; its exit code."""
    copy = whole.put(site, f"kit {words[0]} has not begun")
    place = new_place(copy)
    return call(copy, place, copy.folder, with_options(words, "--cluster", _send_profile(copy, place, site)))


def go_with(job: Job, command: str, target: Optional[str], output: Optional[str], problems: Problems) -> None:
    """Does this command of a job, and ends, where the job's cluster is elsewhere: the project's files travel, and its image.

    Raises UsageError where the job has mistakes.
    """
    site = elsewhere(job.cluster)
    if not site:
        return
    its = there.look(job._replace(code=None), site, output or str(rundir.choose(job.name or "job")), problems)
    project = its.remote.workdir
    keyrings = [secret.at for secret in (*site.secrets.values(), *(job.secrets or {}).values()) if secret.source == "file"]
    found = sources.find(project, job.where("workdir"), problems, keyrings) if project else None
    problems.raise_if_any()
    if found and found.keys:
        print(f"kit: keys stay here, and {its.host.name} has none of them: {keys.shown(found.keys)}", file=sys.stderr, flush=True)
    if found and found.tracked_keys:
        print(f"kit: {keys.COPIED.format(keys.shown(found.tracked_keys))}", file=sys.stderr, flush=True)
    files = found.names if found else ()
    copy = whole.put(site, f"kit {command} has not begun")
    place = new_place(copy)
    options = ["--cluster", _send_profile(copy, place, site)]
    if its.job.image:
        _send_image(copy, its)
        options += ["--image", its.job.image]
    if command != "doctor":  # which has no runs, and goes where it is
        options += ["--workdir", str(its.job.workdir), *([] if output else ["--output", its.run_dir])]
    words = _send_project(copy, place, its, [command, *sys.argv[2:]], target, files)
    sys.exit(call(copy, place, str(its.job.workdir) if project else copy.folder, with_options(words, *options)))


def _send_profile(copy: Copy, place: str, site: Cluster) -> str:
    """Its path there; the name is that of the cluster."""
    profile = f"{place}/{os.path.basename(site.name)}.yaml"
    copy.host.call("whole::write", profile, text=profile_there(site.text), doing="nothing has begun")
    return profile


def _send_image(copy: Copy, its: There) -> None:
    if its.remote.image and its.job.image:
        copy.host.call("login::make", f"{copy.folder}/images", doing="nothing has begun")
        submission.send_image(copy.host, its.remote.image, str(its.remote.image_sha256), its.job.image)


def _send_project(copy: Copy, place: str, its: There, words: list[str], target: Optional[str], files: Sequence[str]) -> list[str]:
    """The words with the job's file as it is called over there: in the project, or beside the profile where it is not of it."""
    project, doing = its.remote.workdir, "nothing has begun"
    if target is None and words[0] != "bench" and os.path.isfile("job.yaml"):
        target, words = "job.yaml", [words[0], "job.yaml", *words[1:]]
    if target and not target.startswith("-"):
        inside = os.path.relpath(target, project) if project else os.pardir
        if inside.startswith(os.pardir):
            copy.host.send(Path(target), place, to=os.path.basename(target), doing=doing)
            inside = f"{place}/{os.path.basename(target)}"
        else:
            files = list(dict.fromkeys([*files, inside]))  # where git ignores it, too
        words = [inside if word == target else word for word in words]
    if project:
        copy.host.call("login::make", str(its.job.workdir), doing=doing)
        copy.host.send_listed(Path(project), str(its.job.workdir), files, doing=doing)
    return words


def enter(run: Run, words: Sequence[str]) -> int:
    """Runs `kit exec` over there; the history over there has the run then, too."""
    copy = whole.put(Cluster(name="", ssh=run.ssh, ssh_dir=os.path.dirname(os.path.dirname(run.there))), "kit exec has not begun")
    over_there = Run(run.id, run.there, run.name, run.shape, run.created_s, array=run.array)
    copy.host.call("whole::note_run", json.dumps(run.there), text=json.dumps(asdict(over_there)) + "\n", doing="nothing has begun")
    return call(copy, new_place(copy), copy.folder, words)


def new_place(copy: Copy) -> str:
    """Of one call; it removes that itself."""
    return f"{copy.folder}/calls/{secrets.token_hex(8)}"


def call(copy: Copy, place: str, folder: str, words: Sequence[str]) -> int:
    script = call_script("whole::call", place, copy, folder, words)
    copy.host.call("whole::write", f"{place}/call.sh", text=script, doing="nothing has begun")
    sys.stdout.flush()
    sys.stderr.flush()
    return copy.host.attach(f"{place}/call.sh", doing=f"what kit {words[0]} did there is not known")


def call_script(function: str, place: str, copy: Copy, folder: str, words: Sequence[str], variables: Optional[dict[str, str]] = None) -> str:
    """A script that runs a command of kit over there: no list of processes, and no shell but its own, sees how it was quoted."""
    text = assets.script("remote/login.sh") + assets.script("remote/whole.sh")
    exports = "".join(f"export {name}={quote.bash(value)}\n" for name, value in (variables or {}).items())
    return f"{text}{exports}{function} {quote.bash_array([place, copy.python, copy.place, folder, *words])[1:-1]}\n"


def with_options(words: Sequence[str], *options: str) -> list[str]:
    """Before the program's own arguments; the last of two equal options holds."""
    place = list(words).index("--") if "--" in words else len(words)
    return [*words[:place], *options, *words[place:]]


def profile_there(text: str) -> str:
    """A profile as the login node itself has it."""
    import yaml

    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    node.value = [(key, value) for key, value in node.value if key.value not in PROFILE_KEYS]
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True)) if node.value else "{}\n"
