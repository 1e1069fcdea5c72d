"""`kit build` with this machine's Docker Engine: once, whole, and whatever goes wrong with a reason."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import until

pytestmark = pytest.mark.cluster

# With the number of this process: another run of the tests may have the same engine, and would remove an image that is its own as well.
DOCKERFILE = f"""\
ARG BASE_IMAGE=kit-test/small
FROM ${{BASE_IMAGE}}
COPY hello.sh /opt/
RUN echo 'built once' && head -c 8M /dev/urandom >/opt/noise
ENV GREETING="it's \\"so\\" \\$HOME"
LABEL org.example.title="a test" org.example.of="{os.getpid()}"
WORKDIR /opt/work
ENTRYPOINT ["sh", "/opt/hello.sh"]
CMD ["nobody"]
"""


@pytest.fixture
def project(engine: str, tmp_path: Path) -> Iterator[Path]:
    """A folder called hello with a recipe; its containers are gone afterwards."""
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "hello.sh").write_text('echo "$PWD: $GREETING, $*"\n')
    yield folder
    listed = docker(["ps", "--all", "--format", '{{.ID}} {{.Label "kit.build"}}'])
    if left := [line.split()[0] for line in listed.splitlines() if str(folder) in line]:
        docker(["rm", "--force", *left])


def built(project: Path, name: str = "hello") -> dict:
    return json.loads((project / f"images/{name}.json").read_text())


def leftovers(project: Path) -> list[str]:
    """What is neither an image, nor a record, nor a log."""
    return [path.name for path in (project / "images").glob("*") if path.name.startswith(".")]


def containers(project: Path) -> list[str]:
    listed = subprocess.run(["docker", "ps", "--all", "--format", '{{.Label "kit.build"}}'], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(project) in line]


def test_a_recipe_becomes_one_file_with_its_origin_beside_it(kit, project: Path) -> None:
    done = kit("build", "--build-arg", "BASE_IMAGE=debian:trixie", cwd=project)
    record = built(project)
    file = project / "images" / record["file"]
    assert done.stdout.startswith(f"kit: {file}: ") and done.stdout.endswith("in a job: `image: hello`\n")
    assert re.fullmatch(r"hello-[0-9a-f]{16}\.sqsh", file.name)
    assert subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0] == record["sha256"]
    assert record["size"] == file.stat().st_size
    assert record["packages"]["deb:coreutils"] and list(record["bases"]) == ["debian:trixie"] and record["engine"] == "docker"
    assert 'GREETING=it\'s "so" $HOME' in record["env"]
    listing = subprocess.run(["unsquashfs", "-ll", file], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"^[bc]", listing, re.MULTILINE) and " squashfs-root/opt/work\n" in listing
    for name, expected in (("etc/rc", "exec sh /opt/hello.sh"), ("etc/environment", "GREETING="), (".singularity.d/labels.json", "a test")):
        assert expected in subprocess.run(["unsquashfs", "-cat", file, name], capture_output=True, text=True, check=True).stdout
    assert (leftovers(project), containers(project)) == ([], [])
    assert docker(["images", "--quiet", "kit-build/hello"]) == ""


def test_a_second_build_of_the_same_starts_no_engine(kit, project: Path) -> None:
    kit("build", cwd=project)
    os.utime(project / "hello.sh", (1, 1))  # as a fresh clone would have it
    # An engine that does not answer would be noticed. What it takes is measured by bench/image.py.
    done = kit("build", cwd=project, DOCKER_HOST="tcp://127.0.0.1:9")
    assert done.stdout == f"kit: {project / 'images' / built(project)['file']} is up to date\n"


def test_a_change_of_what_goes_in_is_another_image_and_a_change_back_the_first_again(kit, project: Path) -> None:
    kit("build", cwd=project)
    first = built(project)["file"]
    (project / "hello.sh").write_text("echo changed\n")
    kit("build", cwd=project)
    assert built(project)["file"] != first
    (project / "hello.sh").write_text('echo "$PWD: $GREETING, $*"\n')
    assert "is up to date" in kit("build", cwd=project).stdout
    assert built(project)["file"] == first
    listed = kit("images", cwd=project).stdout.splitlines()
    assert [line.split()[:2] for line in listed[1:3]] in ([["hello", "*"], ["hello", listed[2].split()[1]]], [["hello", listed[1].split()[1]], ["hello", "*"]])


def test_eight_builds_at_the_same_time_do_the_work_once(project: Path) -> None:
    builds = [
        subprocess.Popen([sys.executable, "-m", "kit", "build"], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)
    ]
    ended = [(*build.communicate(timeout=200), build.returncode) for build in builds]
    assert [code for *_, code in ended] == [0] * 8, ended
    assert sum("in a job" in out for out, *_ in ended) == 1
    assert sum("is up to date" in out for out, *_ in ended) == 7
    assert sum("kit: building" in err for _, err, _ in ended) == 1
    assert (leftovers(project), containers(project)) == ([], [])


def test_a_build_killed_at_any_moment_leaves_nothing_that_a_job_would_take(kit, project: Path) -> None:
    start = time.monotonic()
    kit("build", cwd=project)
    whole_s = time.monotonic() - start
    good = built(project)["sha256"]
    chance = random.Random(0)
    for moment in sorted(chance.uniform(0.1, whole_s) for _ in range(10)):
        shutil.rmtree(project / "images", ignore_errors=True)
        process = subprocess.Popen([sys.executable, "-m", "kit", "build"], cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moment)
        process.kill()
        process.wait()
        job = kit("render", "hello.sh", "--image", "hello", "--runtime", "enroot", "--output", f"run{moment}", cwd=project, check=False)
        if (project / "images/hello.json").exists():  # it was done
            assert job.returncode == 0 and built(project)["sha256"]
        else:
            assert job.returncode == 2 and "there is no image hello" in job.stderr
        assert [path for path in (project / "images").glob("*.sqsh") if not path.with_suffix(".json").exists()] == []
    kit("build", cwd=project)
    if containers(project):  # what a busy engine still made for a killed client may appear after that build has looked
        shutil.rmtree(project / "images")
        kit("build", cwd=project)
    assert len(good) == len(built(project)["sha256"]) == 64
    assert (leftovers(project), containers(project)) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_build_and_what_it_had_begun(number: int, project: Path) -> None:
    (project / "Dockerfile").write_text(DOCKERFILE.replace("RUN echo", f"RUN sleep 121.{number} && echo"))
    process = subprocess.Popen([sys.executable, "-m", "kit", "build"], cwd=project, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    until(lambda: f"RUN sleep 121.{number}" in str(process.stderr and process.stderr.readline()), 60, "the step does not begin")
    os.kill(process.pid, number)
    assert process.wait(60) == 128 + number
    assert [path.name for path in (project / "images").iterdir() if path.suffix != ".log"] == []
    sleeping = ["pgrep", "--full", f"^sleep 121.{number}"]
    until(lambda: subprocess.run(sleeping, capture_output=True).returncode == 1, 30, "the step goes on")


@pytest.mark.parametrize("damage", ["a flipped byte", "cut off"])
def test_a_damaged_file_is_refused_by_name_with_both_digests_and_built_again(damage: str, kit, project: Path) -> None:
    kit("build", cwd=project)
    record = built(project)
    file = project / "images" / record["file"]
    before = file.stat()
    with file.open("r+b") as handle:
        if damage == "cut off":
            handle.truncate(record["size"] // 2)
        else:
            handle.seek(record["size"] // 2)
            byte = handle.read(1)[0]
            handle.seek(-1, os.SEEK_CUR)
            handle.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # the kernel's own time of change stays
    actual = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0]
    how = f"it has {file.stat().st_size} bytes, not {record['size']}" if damage == "cut off" else f"its sha256 is {actual}, not {record['sha256']}"
    for image in ("hello", str(file)):
        refused = kit("submit", "hello.sh", "--image", image, "--runtime", "enroot", cwd=project, check=False)
        assert refused.returncode == 2
        assert f"{file} is not the file that was built: {how}" in refused.stderr
    assert "building it again" in kit("build", cwd=project).stderr
    assert kit("render", "hello.sh", "--image", "hello", "--runtime", "enroot", "--output", "run", cwd=project).returncode == 0


def test_a_jobs_record_says_which_file_it_uses_and_the_list_which_jobs_use_a_file(kit, project: Path) -> None:
    kit("build", cwd=project)
    kit("render", "hello.sh", "--image", "hello", "--runtime", "enroot", "--output", "runs/first", cwd=project)
    plan = json.loads((project / "runs/first/run.json").read_text())["plan"]["container"]
    assert plan["image"] == str(project / "images" / built(project)["file"])
    assert plan["sha256"] == built(project)["sha256"]
    header, row, total = kit("images", cwd=project).stdout.splitlines()
    assert header.split() == ["NAME", "SIZE", "BUILT", "RUNS", "LAST", "RUN", "FILE"]
    assert re.fullmatch(rf"hello \*  [\d.]+ MiB +(\d+m )?\d+s ago +1 +(\d+m )?\d+s ago  first +{re.escape(built(project)['file'])}", row)
    assert total.endswith("* is what the name means in a job")


@pytest.mark.skipif(bool(shutil.which("apptainer") or shutil.which("enroot")), reason="the file itself would run")
def test_a_run_by_the_engine_is_a_use_of_the_file_and_a_label_finds_the_engines_image(kit, project: Path) -> None:
    (project / "Dockerfile").write_text(DOCKERFILE.replace("kit-test/small", "debian:trixie"))  # it has a bash
    kit("build", cwd=project)
    (digest,) = re.findall(r"-([0-9a-f]{16})\.sqsh", built(project)["file"])
    assert docker(["images", "--no-trunc", "--quiet", "--filter", f"label=org.opencontainers.image.version={digest}"]).split() == [built(project)["image_id"]]
    for path in (project / "images").glob("hello-*"):
        os.utime(path, (1, 1))
    assert "1 unused" in kit("images", "gc", cwd=project).stdout
    done = kit("run", "bash", "--image", "hello", "--launcher", "spawn", "--output", "runs/first", "--", "hello.sh", cwd=project)
    assert 'it\'s "so" $HOME' in done.stdout and done.stderr.count("so it runs the image that the file is made of") == 1
    assert json.loads((project / "runs/first/run.json").read_text())["plan"]["container"]["made_file"] == str(project / "images" / built(project)["file"])
    assert re.search(r"\d+d \d+h ago +1 +(\d+m )?\d+s ago  first ", kit("images", cwd=project).stdout)
    shutil.rmtree(project / "runs/first")
    assert "nothing of yours that has not been used" in kit("images", "gc", cwd=project).stdout
    assert kit("runs", cwd=project).stdout == "kit: no such run of this folder; see kit runs --all\n"
    docker(["image", "rm", built(project)["image_id"]])


def test_what_no_run_has_used_for_some_days_goes_when_told_to(kit, project: Path, tmp_path: Path) -> None:
    kit("build", cwd=project)
    used = built(project)["file"]
    kit("render", "hello.sh", "--image", "hello", "--runtime", "enroot", "--output", "runs/first", cwd=project)
    (project / "hello.sh").write_text("echo changed\n")
    kit("build", cwd=project)
    unused = built(project)["file"]
    for path in (project / "images").glob("hello-*"):
        os.utime(path, (1, 1))
    kit("render", "hello.sh", "--image", "hello", "--runtime", "enroot", "--output", str(tmp_path / "elsewhere"), cwd=project)
    assert "nothing of yours that has not been used" in kit("images", "gc", cwd=project).stdout
    os.utime(project / "images" / unused.replace(".sqsh", ".json"), (1, 1))
    asked = kit("images", "gc", cwd=project)
    assert unused in asked.stdout and used not in asked.stdout and "nothing is removed without --yes" in asked.stdout
    assert (project / "images" / unused).exists()
    for place in (["gc", "--images", "nowhere"], ["--images", "nowhere", "gc"]):
        assert "nothing of yours that has not been used" in kit("images", *place, "--yes", cwd=project).stdout
    (tmp_path / "link").symlink_to(project / "images")  # another name of the same folder
    kit("images", "--images", str(tmp_path / "link"), "gc", "--yes", cwd=project)
    left = sorted(path.name for path in (project / "images").glob("*"))
    assert left == sorted([used, used.replace(".sqsh", ".json"), used.replace(".sqsh", ".log")])


def test_an_image_of_the_engine_becomes_a_file_without_a_recipe(kit, project: Path) -> None:
    tag = kit("build", "--to", "docker", cwd=project).stdout.removeprefix("kit: ").strip()
    direct = subprocess.run(["docker", "run", "--rm", tag], capture_output=True, text=True, check=True)
    assert direct.stdout == '/opt/work: it\'s "so" $HOME, nobody\n'
    kit("build", f"dockerd://{tag}", cwd=project)
    assert built(project, tag.partition("/")[2].replace(":", "-"))["source"] == f"dockerd://{tag}"
    assert "is up to date" in kit("build", f"dockerd://{tag}", cwd=project).stdout


def push(image: str, address: str) -> str:
    """The digest that the registry gave the image as ADDRESS/base:1."""
    docker(["tag", image, f"{address}/base:1"])
    until(lambda: subprocess.run(["docker", "push", "--quiet", f"{address}/base:1"], capture_output=True).returncode == 0, 30, "the registry takes nothing")
    (digest,) = [item for item in docker(["image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', f"{address}/base:1"]).split() if address in item]
    docker(["image", "rm", f"{address}/base:1"])
    return digest.partition("@")[2]


def docker(arguments: list[str], stdin: str = "") -> str:
    return subprocess.run(["docker", *arguments], input=stdin, capture_output=True, text=True, check=True).stdout


def test_a_bases_digest_is_locked_until_it_is_told_to_look_again(kit, registry: str, project: Path) -> None:
    base, lock = f"{registry}/base:1", project / "image.lock"
    first = push("kit-test/small", registry)
    arguments = ["build", "--build-arg", f"BASE_IMAGE={base}"]
    kit(*arguments, cwd=project)
    assert json.loads(lock.read_text()) == built(project)["bases"] == {base: first}
    file = built(project)["file"]

    docker(["build", "--quiet", "--tag", "kit-test/newer", "-"], "FROM kit-test/small\nRUN echo newer >/newer\n")
    second = push("kit-test/newer", registry)
    assert "is up to date" in kit(*arguments, cwd=project).stdout  # the lock holds, and nobody is asked
    kit(*arguments, "--update", cwd=project)
    assert json.loads(lock.read_text()) == {base: second} and second != first
    assert built(project)["file"] != file
    assert (
        subprocess.run(["unsquashfs", "-cat", project / "images" / built(project)["file"], "newer"], capture_output=True, text=True, check=True).stdout
        == "newer\n"
    )

    assert "is up to date" in kit(*arguments, "--update", cwd=project).stdout  # the registry has nothing newer
    lock.write_text(json.dumps({base: first}))  # as somebody else's checkout has it
    assert "is up to date" in kit(*arguments, cwd=project).stdout
    assert built(project)["file"] == file


def test_a_secret_argument_is_in_no_record_no_log_and_no_process_list(project: Path) -> None:
    (project / "Dockerfile").write_text(DOCKERFILE.replace("RUN", 'ARG API_TOKEN\nRUN test "$API_TOKEN" = on1y-for-this-build && sleep 2\nRUN'))
    process = subprocess.Popen(
        [sys.executable, "-m", "kit", "build", "--build-arg", "API_TOKEN"], cwd=project, env={**os.environ, "API_TOKEN": "on1y-for-this-build"}
    )
    while process.poll() is None:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert "on1y-for-this-build" not in listed.replace("= on1y-for-this-build && sleep", "")  # the RUN line itself is the recipe's
        time.sleep(0.05)
    assert process.returncode == 0
    assert built(project)["arguments"] == {"API_TOKEN": "(hidden)"}
    for path in (project / "images").iterdir():
        assert path.suffix == ".sqsh" or "on1y-for-this-build" not in path.read_text().replace("= on1y-for-this-build && sleep", "")


RUN_FAILS = DOCKERFILE.replace("RUN echo", "RUN echo about-to-fail && false && echo")
FAILURES = {
    "a RUN that fails": (
        RUN_FAILS,
        [],
        {},
        r"kit: docker build failed in step 4/10: RUN echo about-to-fail && false.*\n  fix: correct that step; the log: (.*)\n",
    ),
    "an engine that does not answer": (
        DOCKERFILE,
        [],
        {"DOCKER_HOST": "tcp://127.0.0.1:9"},
        r"kit: docker does not answer: .*127\.0\.0\.1:9.*\n  fix: start it, or join the group docker",
    ),
    "a registry that is not there": (
        DOCKERFILE,
        ["--build-arg", "BASE_IMAGE=127.0.0.1:9/base:1"],
        {},
        r"kit: registry 127\.0\.0\.1:9 cannot be reached: .*refused\n  fix: check the name, the network",
    ),
    "no engine": (DOCKERFILE, [], {"PATH": "bin"}, r"kit: no engine is installed here: docker, podman, apptainer, enroot\n  fix: install one"),
    "a name that is none": (
        DOCKERFILE,
        ["--build-arg", "BASE_IMAGE=No Such"],
        {},
        r"kit: 'No Such' is not the name of an image in a registry\n  fix: write ",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_names_the_step_the_log_and_the_fix_and_leaves_nothing(failure: str, kit, project: Path) -> None:
    text, options, environment, expected = FAILURES[failure]
    (project / "Dockerfile").write_text(text)
    (project / "bin").mkdir()
    (project / "bin/mksquashfs").symlink_to(str(shutil.which("mksquashfs")))
    done = kit("build", *options, cwd=project, check=False, **environment)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    found = re.search(expected, done.stderr)
    assert found, done.stderr
    if found.groups():
        assert "about-to-fail" in Path(found[1]).read_text()
    assert [path.name for path in (project / "images").glob("*") if path.suffix != ".log"] == []
    assert "about-to-fail" not in subprocess.run(["docker", "ps", "--all", "--no-trunc"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("full", ["before", "while it is written"])
def test_a_disk_that_is_too_small_is_named(full: str, kit, project: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    inspect = ["docker", "image", "inspect", "--format", "{{.Size}}", "kit-test/small"]
    base = int(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout) // 2**20
    # Half of the files' size is asked for; but noise does not get smaller.
    megabytes, expected = (
        (20, r"small has 20 MiB free; a file of .* of files needs about ") if full == "before" else ((base + 60) // 2 + 10, "no space is left in .*small\n")
    )
    (project / "Dockerfile").write_text(DOCKERFILE.replace("8M", "60M"))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "small", small], check=True)
    try:
        done = kit("build", "--images", str(small), cwd=project, check=False)
        assert done.returncode == 1
        assert re.search(expected, done.stderr), done.stderr
        assert [path.name for path in small.iterdir() if path.suffix != ".log"] == []
    finally:
        subprocess.run(["umount", small], check=True)
