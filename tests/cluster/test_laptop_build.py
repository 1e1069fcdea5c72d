"""The whole kit on a login node, called from a laptop: builds that outlive the connection, and what has to run over there."""

from __future__ import annotations

import hashlib
import io
import json
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.registry import oci
from login_node import Laptop
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster
# Stands in the way to the real one: a build takes as long as a file says so.
SLOW_MKSQUASHFS = """\
#!/bin/bash
while [[ "$1" == - && -e /tmp/hold-pack ]]; do : >/tmp/held-pack.$$; sleep 0.05; done
exec /usr/bin/mksquashfs "$@"
"""
OLD_PYTHON = "#!/bin/bash\n[[ $1 != --version ]] || exec echo Python 3.6.8\nexit 1\n"
JOB = "command: [bash, program.sh]\nlauncher: srun\nruntime: apptainer\nnodes: 2\ncluster: far\nimage: small\nname: job\n"


@pytest.fixture(scope="module")
def rootfs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest image's files, and one by which it is known."""
    folder = tmp_path_factory.mktemp("image") / "root"
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", folder, tiny / "image.sqsh"], check=True, capture_output=True)
    return folder


@pytest.fixture
def far(laptop: Laptop, rootfs: Path, cluster: Cluster) -> Iterator[Laptop]:
    """With small.tar in the project, another image in each test, and nothing built over there."""
    remove_leftovers(laptop)
    mark = laptop.project.name
    (rootfs / "etc/mark").write_text(mark)
    (rootfs / "etc/mark").chmod(0o644)
    write_archive(laptop.project / "small.tar", rootfs)
    (laptop.project / "job.yaml").write_text(JOB)
    (laptop.project / "program.sh").write_text('echo "$(</etc/mark)"\nsleep "${1:-0}"\n')
    install(cluster, "mksquashfs", SLOW_MKSQUASHFS)
    yield laptop
    laptop.release()
    cluster.run("ctl", "rm", "-f", *(f"/usr/local/bin/{name}" for name in ("mksquashfs", "python3", "python3.13")), root=True)
    remove_leftovers(laptop)


def remove_leftovers(laptop: Laptop) -> None:
    """Removes other tests' copies, and the folders of calls whose last message a loaded machine lost; kit removes those after two days."""
    laptop.there("bash", "-c", 'rm -rf -- "$1"/images "$1"/given "$1"/calls', "bash", laptop.ssh_dir)


def install(cluster: Cluster, name: str, text: str) -> None:
    cluster.run("ctl", "bash", "-c", 'printf "%s" "$2" >"/usr/local/bin/$1" && chmod 755 "/usr/local/bin/$1"', "bash", name, text, root=True)


def write_archive(path: Path, root: Path) -> None:
    """As docker save does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(root, arcname=".")
    identity = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    config = {
        "architecture": oci.architecture(),
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [identity]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["small:1"], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for name, content in (("config.json", json.dumps(config)), ("manifest.json", json.dumps(manifest)), ("layer.tar", layer.getvalue())):
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


BUILD = ("build", "small.tar", "--cluster", "far")


def left(laptop: Laptop) -> list[str]:
    """What is in the folders of images, of builds and of calls over there; no records and logs."""
    found = laptop.there("bash", "-c", 'cd "$1" && find images calls -mindepth 1 ! -name "*.json" ! -name "*.log" 2>/dev/null; true', "bash", laptop.ssh_dir)
    return found.splitlines()


def test_an_image_is_built_over_there_and_a_job_names_it(far: Laptop) -> None:
    assert "there is no image small" in far.kit("submit", "job.yaml", code=2).stderr
    built = far.kit(*BUILD)
    assert built.stdout.endswith("  in a job: `image: small`\n") and "kit: copying small.tar to login, " in built.stderr
    (image,) = left(far)
    assert re.fullmatch(r"images/small-[0-9a-f]{16}\.sqsh", image) and not (far.project / "images").exists()
    again = far.kit(*BUILD)
    assert again.stdout == f"kit: {far.ssh_dir}/{image} is up to date\n" and "copying kit" not in again.stderr
    done = far.kit("submit", "job.yaml", "--follow")
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("[rank")) == [f"[rank{rank}] {far.project.name}" for rank in (0, 1)]
    asked = far.kit("doctor", "job.yaml", "--cluster", "far").stdout
    assert asked.startswith("kit: 3 of 3 nodes answered, ") and "kit: the job job would start" in asked
    scripts = far.kit("bench", "job.yaml", "-j", "2x1", "--dry-run").stdout
    assert f"{far.ssh_dir.partition(' ')[0]}" in scripts and image[7:] in scripts and "#SBATCH --nodes=2" in scripts
    listed = far.kit("images", "--cluster", "far").stdout
    assert re.search(rf"^small \* .* 1 +(\d+m )?\d+s ago +job-.* {image[7:]}$", listed, re.MULTILINE), listed
    far.there("bash", "-c", 'find "$1"/images "$1"/work -exec touch -h -d "9 days ago" {} +', "bash", far.ssh_dir)
    assert image[7:] in far.kit("images", "gc", "--yes", "--cluster", "far").stdout and left(far) == []


def test_a_build_goes_on_without_the_connection_and_is_found_by_the_same_command(far: Laptop) -> None:
    far.hold("pack")
    building = far.start(*BUILD)
    far.wait_held("pack")
    building.kill()  # the laptop's battery is empty
    building.communicate()
    far.cut()
    second = far.start(*BUILD)
    assert second.stderr
    said = iter(second.stderr.readline, "")
    assert any("goes on there, and is not started again; its output:" in line for line in said)
    far.stop_sshd()
    assert next(line for line in said if "lost" in line).endswith("trying again; what runs there continues meanwhile\n")
    far.start_sshd()
    far.release()
    out, errors = second.communicate(timeout=180)
    assert second.returncode == 0, errors
    assert "kit: login answers again" in errors and out.count("in a job: `image: small`") == 1
    assert len(left(far)) == 1


def test_ctrl_c_ends_a_build_over_there_and_leaves_nothing(far: Laptop) -> None:
    far.hold("pack")
    building = far.start(*BUILD)
    far.wait_held("pack")
    building.send_signal(signal.SIGINT)
    building.communicate(timeout=180)
    assert building.returncode == 130
    assert left(far) == []
    until(lambda: far.there("bash", "-c", "pgrep -u ada -af '[k]it-[0-9]|[m]ksquashfs'; true") == "", 30, "something of it goes on")


def test_what_a_recipe_copies_travels_and_a_build_that_fails_says_why(far: Laptop) -> None:
    (far.project / "Dockerfile").write_text("FROM debian:trixie\nCOPY program.sh more /opt/\nRUN --mount=type=ssh true\n")
    (far.project / ".dockerignore").write_text("more/secret\n")
    (far.project / "more").mkdir()
    for name in ("secret", "public"):
        (far.project / "more" / name).write_text(name)
    (far.project / "program.sh").chmod(0o755)
    done = far.kit("build", "--cluster", "far", code=2)
    # There is no Docker on the login node, and it has seen the recipe.
    assert "Dockerfile:3: RUN --mount=type=ssh needs Docker's builder" in done.stderr, done
    copied = far.there("bash", "-c", 'cd "$1"/given/project-* && find . -mindepth 2 -type f -printf "%m %P\\n"', "bash", far.ssh_dir)
    assert sorted(copied.splitlines()) == sorted(
        f"{mode} {far.project.name}/{name}" for mode, name in ((644, "Dockerfile"), (755, "program.sh"), (644, "more/public"))
    )
    (far.project / "Dockerfile").write_text("FROM debian:trixie\nCOPY nothing.sh /opt/\n")
    assert f"{far.project}/Dockerfile:2: nothing.sh is not in {far.project}" in far.kit("build", "--cluster", "far", code=2).stderr
    assert far.kit("build", "--cluster", "generic", code=2).stderr.startswith("kit: --cluster: the profile generic names no login node by `ssh`\n")


def test_exec_runs_over_there_with_hostile_words_and_its_exit_code(far: Laptop) -> None:
    (far.project / "job.yaml").write_text(JOB.replace("image: small\n", "").replace("apptainer", "none"))
    far.kit("submit", "job.yaml", "--name", "long", "--", "300")
    until(lambda: far.kit("exec", "long", "--", "true", code=None).returncode == 0, 120, "the job does not start")
    hostile = "a 'b' \"c\" $(d) *"
    entered = far.kit("exec", "long", "--node", "1", "--", "bash", "-c", 'echo "$KIT_NODE_NAME:$1"; exit 7', "bash", hostile, code=7)
    assert entered.stdout.endswith(f":{hostile}\n")
    far.kit("cancel", "long")


def test_a_login_node_without_a_python_is_said_in_two_lines(far: Laptop, cluster: Cluster) -> None:
    for name in ("python3", "python3.13"):
        install(cluster, name, OLD_PYTHON)
    done = far.kit(*BUILD, code=1)
    assert re.fullmatch(
        r"kit: login has no Python 3\.9 or later on PATH \(python3 there: Python 3\.6\.8\): nothing is built yet\n"
        r"  fix: name one in the profile: `ssh_python: /path/to/python3`, or `ssh_python: module load NAME`; look: ssh login module avail python\n",
        done.stderr,
    )
    cluster.run("ctl", "bash", "-c", "ln -sfn /usr/bin/python3 /usr/local/bin/mine", root=True)
    profile = far.home / "config/kit/clusters/far.yaml"
    before = profile.read_text()
    profile.write_text(before + "ssh_python: /usr/local/bin/mine\n")
    assert "in a job: `image: small`" in far.kit(*BUILD).stdout
    profile.write_text(before)


def test_a_shell_over_there_has_this_terminal_and_its_exit_code(far: Laptop) -> None:
    (far.project / "job.yaml").write_text(JOB.replace("image: small\n", "").replace("apptainer", "none"))
    terminal = Path(__file__).parent / "terminal.py"
    steps = ["$ =>cat program.sh", "etc/mark=>exit 7"]
    line = [sys.executable, terminal, *steps, "--", *far.line("shell", "job.yaml")]
    done = subprocess.run(line, cwd=far.project, env=far.environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 7, done.stdout
    assert re.search(r"kit: ctl: a shell on node[123]; the job ends with it", done.stdout)
