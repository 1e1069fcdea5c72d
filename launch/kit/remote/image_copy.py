"""On the laptop: copies an image to the login node, once, and continues a copy that was cut off."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError, Problems
from kit.base.formats import size
from kit.config import image_files
from kit.config.job import Job
from kit.remote import rsync
from kit.remote.install import Copy
from kit.remote.ssh import locked

VERIFY_S = 3600.0


def of_job(job: Job, problems: Problems) -> Optional[Path]:
    """Return the job's image where it is a file of this machine, and starts there at all."""
    if not job.image or job.runtime == "none":
        return None
    if "://" in job.image or not os.path.exists(job.image):
        return None
    if os.path.isdir(job.image):
        problem = f"the image {job.image} is a folder, and kit copies files"
        fix = "make a file of it: apptainer build NAME.sif FOLDER"
        problems.add(job.where("image"), problem, fix)
        return None
    try:
        image_files.check(Path(job.image))
    except KitError as error:
        problems.add(job.where("image"), error.problem, error.fix)
        return None
    return Path(job.image)


def send(copy: Copy, image: Path) -> str:
    """Copy an image to the login node unless it is there; return its path there."""
    host, sha256, count = copy.host, image_files.digest(image), image.stat().st_size
    stem, suffix = (re.sub(r"[^A-Za-z0-9._-]", "-", part) for part in (image.stem, image.suffix))
    name = f"{stem}-{sha256[:16]}{suffix}"
    folder, part = f"{copy.folder}/{image_files.FOLDER}", f".{name}.part"
    options = [rsync.PRIVATE, "--append", "--partial"]
    next_time = "the next time its copy goes on from there"
    host.progress = f"the image is not all there, and nothing has begun; {next_time}"
    with locked(f"image-{sha256[:16]}"):  # a second command waits, and then finds the image there
        if copy.ask("image", folder=copy.folder, name=name, size=count)["is_there"]:
            return f"{folder}/{name}"
        host.say(f"copying {image.name} to {host.name}, {size(count)}, once")
        for _ in range(2):  # what was cut off may not be a part of this very file
            rsync.send(host, image, folder, options, to=part)
            facts = {"part": f"{folder}/{part}", "name": name, "sha256": sha256}
            if copy.ask("place image", VERIFY_S, **facts)["is_whole"]:
                return f"{folder}/{name}"
    problem = f"the copy of {image} on {host.name} is not what is here: its sha256 differs"
    raise KitError(problem, "was the file changed meanwhile? type the same command again")
