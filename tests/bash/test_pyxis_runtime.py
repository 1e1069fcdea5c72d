"""What the runtime pyxis asks of srun. A stub prints the help of srun: of each version of Pyxis only its options matter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.config.image_files import fingerprint
from running import SCRIPTS, STUBS, bash, environment, stub

ARGS = 'KIT_RUN_DIR="$1"; source "$1/lib/messages.sh"; source "$1/lib/environment.sh"; source "$1/runtimes/pyxis.sh"; runtime::srun_args; printf "%s\\n" "${KIT_SRUN_ARGS[@]}"'
SETTINGS = {"KIT_IMAGE": "/i.sqsh", "KIT_FINGERPRINT": "0123456789abcdef", "KIT_REMAP_ROOT": ""}
# As Pyxis 0.24 prints them, shortened.
OPTIONS = """\
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
      --container-mounts=SRC:DST[:FLAGS][,SRC:DST...]
      --container-workdir=PATH
      --container-name=NAME
      --container-mount-home
      --no-container-mount-home
      --container-remap-root
      --no-container-remap-root
      --container-entrypoint
      --no-container-entrypoint
      --container-writable
"""
SINCE_0_15 = "      --container-env=NAME[,NAME...]\n"


def ask(folder: Path, options: str, remap_root: str = ""):
    stub(folder, "srun", f"cat <<'END'\n{options}END\n")
    body = f'KIT_MOUNTS=(/data "/in data" ro /out /out rw); {ARGS}'
    return bash(body, SCRIPTS, env=environment(folder, **{**SETTINGS, "KIT_REMAP_ROOT": remap_root}))


def test_the_container_is_named_by_its_image_and_nothing_of_the_host_gets_in(tmp_path: Path) -> None:
    done = ask(tmp_path / "bin", OPTIONS + SINCE_0_15, remap_root="yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "--container-image=/i.sqsh",
        f"--container-workdir={SCRIPTS}",
        "--container-writable",
        "--no-container-mount-home",
        "--no-container-entrypoint",
        f"--container-name=kit-0123456789abcdef-{os.getuid()}:no_exec",
        "--container-mounts=/data:/in data:ro,/out:/out:rw",
        "--container-remap-root",
    ]


def test_an_old_pyxis_gets_the_name_alone_of_which_all_it_reads_is_the_name(tmp_path: Path) -> None:
    assert f"--container-name=kit-0123456789abcdef-{os.getuid()}" in ask(tmp_path / "bin", OPTIONS).stdout.splitlines()


def test_the_container_is_started_without_a_login_shell(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "srun", f"cat <<'END'\n{OPTIONS}END\n")
    done = bash(f"KIT_MOUNTS=(); {ARGS} >/dev/null; env", SCRIPTS, env=environment(tmp_path / "bin", **SETTINGS))
    assert "ENROOT_LOGIN_SHELL=no" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("missing", ["container-writable", "container-entrypoint", "container-name", "container-mounts"])
def test_a_pyxis_that_lacks_an_option_is_refused_with_its_name(missing: str, tmp_path: Path) -> None:
    old = "".join(line for line in OPTIONS.splitlines(keepends=True) if missing not in line)
    done = ask(tmp_path / "bin", old)
    assert done.returncode == 1
    assert (
        f"the Pyxis of this site is too old: its srun has no --{'no-' if missing.endswith('entrypoint') else ''}{missing}\n  fix: use `runtime: enroot`"
        in done.stderr
    )


def test_a_slurm_without_pyxis_is_said(tmp_path: Path) -> None:
    done = ask(tmp_path / "bin", "      --cpu-bind=\n")
    assert done.returncode == 1 and "srun has no --container-image here: Pyxis is not set up\n  fix: use `runtime: enroot` or apptainer" in done.stderr


@pytest.mark.parametrize(
    ("line", "is_job"),
    [
        ("required spank_pyxis.so container_scope=job", True),
        ("required spank_pyxis.so container_scope=global", False),
        ("# container_scope=job", False),
        ("", False),
    ],
)
def test_the_sites_scope_of_containers_is_read(line: str, is_job: bool, tmp_path: Path) -> None:
    """grep is a stub that looks at the test's file instead of /etc/slurm."""
    (tmp_path / "plugstack.conf").write_text(f"{line}\n")
    stub(tmp_path / "bin", "grep", f'exec /usr/bin/env -i /bin/grep "$1" "$2" "{tmp_path}/plugstack.conf"\n')
    done = bash(
        'KIT_RUN_DIR="$1"; source "$1/lib/messages.sh"; source "$1/lib/environment.sh"; source "$1/runtimes/pyxis.sh"; pyxis::says container_scope job',
        SCRIPTS,
        env=environment(tmp_path / "bin"),
    )
    assert done.returncode == (0 if is_job else 1), done.stderr


def test_a_configuration_that_is_linked_is_read(tmp_path: Path) -> None:
    """Pyxis's README links /etc/slurm/plugstack.conf.d/pyxis.conf to the file that it installs."""
    (tmp_path / "slurm/plugstack.conf.d").mkdir(parents=True)
    (tmp_path / "pyxis.conf").write_text("required /usr/local/lib/slurm/spank_pyxis.so use_squashfuse=1\n")
    (tmp_path / "slurm/plugstack.conf.d/pyxis.conf").symlink_to(tmp_path / "pyxis.conf")
    body = 'KIT_RUN_DIR="$1"; source "$1/lib/messages.sh"; source "$1/lib/environment.sh"; source "$1/runtimes/pyxis.sh"; pyxis::mounts'
    done = bash(body, SCRIPTS, env=environment(SLURM_CONF=str(tmp_path / "slurm/slurm.conf")))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("old", ["", "yes"])
def test_containers_are_made_under_the_name_and_in_the_place_that_pyxis_looks_for(old: str, open_folder: Path) -> None:
    """Pyxis runs with the site's enroot.conf, so what this user's environment says of Enroot's folders does not count."""
    image = open_folder / "image.sqsh"
    image.write_text("hsqs\netc/x 1\n")
    site, mine = open_folder / "site", open_folder / "mine"
    site.mkdir()
    body = """
    source "${KIT_RUN_DIR}/lib/messages.sh"
    source "${KIT_RUN_DIR}/runtimes/pyxis.sh"
    KIT_MOUNTS=()
    runtime::check
    env | grep -c '^ENROOT_.*_PATH=' || true
    runtime::prepare
    """
    names = ("ENROOT_DATA_PATH", "ENROOT_RUNTIME_PATH", "ENROOT_CACHE_PATH", "ENROOT_TEMP_PATH")
    settings = {"KIT_RUN_DIR": str(SCRIPTS), "KIT_IMAGE": str(image), "KIT_FINGERPRINT": fingerprint(image) or "", "ENROOT_STUB_SITE": str(site)}
    env = environment(STUBS, **settings, **{name: str(mine) for name in names}, HOME=str(open_folder / "home"), ENROOT_STUB_OLD=old)
    done = bash(body, env=env)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    name = f"pyxis_kit-{fingerprint(image)}-{os.getuid()}"
    assert sorted(path.name for path in site.iterdir()) == [f".{name}.lock", name]
    assert (site / name / ".kit-complete").read_text() == f"image {image}\n"
    assert not mine.exists()


def test_pyxis_mounts_what_has_no_name(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "srun", f"cat <<'END'\n{OPTIONS}END\n")
    done = bash(f"KIT_MOUNTS=(); {ARGS}", SCRIPTS, env=environment(tmp_path / "bin", **SETTINGS, KIT_UNPACK="no"))
    assert done.returncode == 0 and "--container-name" not in done.stdout and "--container-image=/i.sqsh" in done.stdout


@pytest.mark.parametrize(("answers", "mounted", "unpack", "rounds"), [(2, 0, "yes", 0), (2, 1, "yes", 1), (2, 2, "no", 0), (0, 0, "yes", 1)])
def test_all_nodes_do_the_same(answers: int, mounted: int, unpack: str, rounds: int) -> None:
    """Slurm starts the containers of all nodes alike: if only some can mount the image, the others have it unpacked as well."""
    body = """
    source "$1/lib/messages.sh"
    source "$1/runtimes/pyxis.sh"
    event::of() { for ((i = 0; i < ANSWERS; i++)); do printf '{"event": "node_ready"%s}\\n' "$( ((i >= MOUNTED)) || printf ', "mounted": "yes"')"; done; }
    ready::wait_for_nodes() { printf 'again %s\\n' "${KIT_UNPACK_ON_ALL}"; }
    runtime::agree
    printf '%s\\n' "${KIT_UNPACK}"
    """
    env = environment(KIT_RUN_DIR=str(SCRIPTS), KIT_UNPACK="auto", NNODES="2", ANSWERS=str(answers), MOUNTED=str(mounted))
    done = bash(body, SCRIPTS, env=env)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["again yes"] * rounds + [unpack]), done.stderr


@pytest.mark.parametrize(
    ("line", "unpack", "code", "said"),
    [
        ("required spank_pyxis.so use_squashfuse=1", "auto", 0, "mounting "),
        ("required spank_pyxis.so use_squashfuse=yes container_scope=job", "auto", 0, "mounting "),
        ("required spank_pyxis.so use_squashfuse=0", "auto", 0, "cannot mount it: kit finds no use_squashfuse=1 in plugstack.conf"),
        ("# use_squashfuse=1", "no", 1, "kit finds no use_squashfuse=1 in plugstack.conf"),
    ],
)
def test_an_image_is_mounted_where_the_site_lets_pyxis_do_so(line: str, unpack: str, code: int, said: str, open_folder: Path) -> None:
    (open_folder / "plugstack.conf").write_text(f"{line}\n")
    stub(open_folder / "bin", "grep", f'[[ "$1" != -RqsE ]] || exec /bin/grep "$1" "$2" "{open_folder}/plugstack.conf"\nexec /bin/grep "$@"\n')
    image, site = open_folder / "image.sqsh", open_folder / "site"
    image.write_text("hsqs\netc/x 1\n")
    site.mkdir()
    body = """
    source "${KIT_RUN_DIR}/lib/messages.sh"
    source "${KIT_RUN_DIR}/lib/events.sh"
    source "${KIT_RUN_DIR}/runtimes/pyxis.sh"
    KIT_MOUNTS=()
    runtime::check
    runtime::prepare
    printf '%s' "${KIT_IN_PLACE:-}"
    """
    settings = {"KIT_RUN_DIR": str(SCRIPTS), "KIT_IMAGE": str(image), "KIT_FINGERPRINT": fingerprint(image) or "", "ENROOT_STUB_SITE": str(site)}
    done = bash(body, env=environment(open_folder / "bin", STUBS, **settings, KIT_UNPACK=unpack, HOME=str(open_folder / "home")))
    is_mounted = said.startswith("mounting")
    assert (done.returncode, done.stdout) == (code, "yes" if is_mounted else ""), done.stderr
    assert said in done.stderr
    assert [path.name for path in site.iterdir() if path.is_dir()] == ([] if is_mounted or code else [f"pyxis_kit-{fingerprint(image)}-{os.getuid()}"])


def test_where_all_nodes_are_prepared_again_their_first_answers_do_not_count(tmp_path: Path) -> None:
    body = """
    source "$1/lib/messages.sh"
    source "$1/lib/events.sh"
    source "$1/lib/ready.sh"
    job::hosts() { printf 'n1\\nn2\\n'; }
    says() { event::line node_ready node "$1" begun 1 staged 2 && printf '%s\\n' "${KIT_LINE}" >>ready.jsonl; }
    says n1 && says n2
    KIT_AWAITED=node_ready KIT_READY_BEFORE=0 && ready::late
    echo again
    KIT_READY_BEFORE=2 && says n1 && ready::late
    """
    done = bash(body, SCRIPTS, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_EVENTS=f"{tmp_path}/batch.jsonl"), cwd=tmp_path)
    assert done.stdout == "again\nn2\n", done.stderr
