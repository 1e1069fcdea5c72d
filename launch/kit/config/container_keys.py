"""The keys of a job file for its container: the image, how it gets to the nodes, what is inside."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Optional

from kit.config import image_files, keys, mount_list, paths, plugins, requirements, values
from kit.config.mount_list import Mount
from kit.config.requirements import Requirement

key = functools.partial(keys.key, panel="Container")


@dataclass(frozen=True)
class ContainerKeys:
    """In which container a job runs, and what its program finds there."""

    image: Optional[str] = key(
        values.line,
        "container image: a name from kit build, a file (.sif, .sqsh), an Apptainer sandbox folder"
        " or an environment definition file (.toml) of CSCS's Container Engine; docker://NAME for"
        " Docker",
        "FILE",
        other_names="container container_image",
        anchor=image_files.anchored,
        needs="container",
    )
    runtime: Optional[str] = key(
        values.line,
        "container runtime [auto: depends on the image, the cluster's profile and what is "
        "installed]",
        "NAME",
        choices=lambda: plugins.choices("runtimes"),
    )
    stage: Optional[str] = key(
        values.line,
        "local: each node copies the image to its own disk, once; sbcast: Slurm sends it; auto: kit"
        " chooses [none]",
        "NAME",
        choices=lambda: plugins.choices("stages"),
        belongs_to="image runtime",
        needs="image file",
    )
    cache: Optional[str] = key(
        values.Words(
            ("node", "keep", "off"),
            "node: on each node's disk; keep: also in a file beside the image; "
            "off: as the image says",
        ),
        "compile caches (Triton, Inductor, CUDA): node: on each node's own disk; keep: also in a"
        " file beside the image, from which new nodes start; off: kit sets nothing [node]",
        belongs_to="image runtime",
    )
    unpack: Optional[str] = key(
        values.unpack,
        "yes: each node unpacks the image before the first start; no: it mounts the image, and"
        " what the program writes into it takes memory; for enroot and pyxis [auto: mount a"
        " staged image]",
        "auto|yes|no",
        examples=lambda: ["auto", "yes", "no"],
        belongs_to="image runtime",
        needs="image file",
    )
    workdir: str = key(
        values.line,
        "where the command runs; mounted in the container [the job file's folder]",
        "DIR",
        other_names="cwd working_dir",
        anchor=paths.absolute,
        default="",
    )
    mounts: tuple[Mount, ...] = key(
        mount_list.parse,
        "folders or files to mount in the container, SOURCE:TARGET[:ro]; of a squashfs file"
        " (.sqsh), the content; {source, target, read_only, on_nodes} for a path with a colon or"
        " that only the nodes have",
        "S:T[:ro]",
        option="--mount",
        other_names="volumes binds",
        anchor=mount_list.anchored,
        from_words=keys.as_list,
        add=mount_list.add,
        default=(),
    )
    packages: Optional[tuple[Requirement, ...]] = key(
        requirements.parse,
        "Python packages beside the image's own, without a new image: a requirements.txt, or a"
        " list of requirements",
        "FILE|NAME",
        other_names="requirements pip dependencies python_packages",
        anchor=requirements.anchored,
        from_words=keys.as_list,
        add=operator.add,
    )
    remap_root: Optional[bool] = key(
        values.flag,
        "be root inside the container (enroot --root, apptainer --fakeroot)",
        needs="container",
    )
