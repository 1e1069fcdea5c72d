"""Submitting to a cluster elsewhere: exactly once, whenever the connection breaks. A fake ssh; tests/cluster/test_laptop.py has a real one."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from far_side import Far
from kit import commands, images, rundir, slurm
from kit.errors import KitError, UsageError
from kit.remote import again, host, mirror, standing, submission, watch
from kit.remote.host import MARK, Host, Unreachable
from kit.runs import follow, history, rerun, status, submit
from kit.runs.history import Run

TOKEN = "0123456789abcdef"
JOB = "command: [bash, -c, 'echo told']\nlauncher: srun\nruntime: none\ncluster: far\n"


def job(far: Far, text: str = JOB) -> None:
    (far.base / "job.yaml").write_text(text)


def known(far: Far, name: str = "r0", job_id: str = "", said: str = "", **more: object) -> Run:
    """A run that the history has, whose folders are here and there, where its submission made it."""
    far.own_kit()
    here, there = far.base / "runs" / name, far.kit / "runs" / name
    for place in (here, there):
        (place / "log").mkdir(parents=True)
    rundir.save(here, {"kit": "0.1.0", "plan": {}, "token": TOKEN})
    (there / MARK).write_text(f"{TOKEN}\n")
    if said:
        (there / f"log/slurm-{job_id or 1001}.out").write_text(said)
    run = Run(job_id, str(here), name, "1x1", time.time(), ssh="login", there=str(there), **more)  # type: ignore[arg-type]
    history.add(run)
    return run


def noted() -> list[tuple[str, str]]:
    return [(run.name, run.id) for run in history.runs()]


# ---------------------------------------------------------------- one submission


@pytest.mark.parametrize("word", ["refused", "unsure"])
def test_what_slurm_over_there_says_decides_whether_the_run_stays(word: str, far: Far, kit_here) -> None:
    job(far)
    words = {"refused": "sbatch: error: invalid partition specified: x", "unsure": "sbatch: error: Socket timed out on send/recv operation"}
    far.slurm.says("sbatch", words[word] + "\n")
    done = kit_here("submit", "job.yaml", "--name", "x", "--output", "run")
    assert done.code == 1
    if word == "refused":
        assert "kit: sbatch refuses: invalid partition specified: x\n" in done.err
        assert not (far.base / "run").exists() and noted() == []
        (there,) = (far.kit / "runs").iterdir()
        assert sorted(path.name for path in there.iterdir()) == [".lock", MARK, "given-up"]
    else:
        assert "whether the job is there is not known\n  fix: type the same command again" in done.err
        assert noted() == [("x", "")] and (far.base / "run/run_script.sh").exists()


def test_a_run_directory_that_cannot_be_made_over_there_leaves_no_run(far: Far, kit_here) -> None:
    job(far)
    far.own_kit()
    (far.kit / "runs").write_text("a file")
    done = kit_here("submit", "job.yaml", "--name", "x", "--output", "run")
    assert done.code == 1 and f"kit: cannot make {far.kit}/runs/" in done.err and "the profile's key `ssh_dir`" in done.err
    assert not (far.base / "run").exists() and noted() == [] and far.slurm.calls("sbatch") == []


def test_a_run_directory_that_another_submission_made_is_left_alone(far: Far) -> None:
    run = known(far)
    (Path(run.there) / "env.sh").write_text("theirs")
    with pytest.raises(KitError, match="is there already on login\n  fix: name another run directory: --output NAME"):
        submission._make(Host("login"), [str(far.kit), run.there, "f" * 16], run.there)
    assert sorted(os.listdir(run.there)) == [MARK, "env.sh", "log"] and (Path(run.there) / "env.sh").read_text() == "theirs"


def test_a_folder_that_is_somebody_elses_gets_no_run(far: Far, kit_here) -> None:
    job(far)
    far.kit.mkdir()
    (far.kit / "thesis.tex").write_text("mine")
    done = kit_here("submit", "job.yaml", "--name", "x", "--output", "run")
    assert done.code == 1 and done.err.startswith(f"kit: {far.kit} on login is not kit's: ")
    assert os.listdir(far.kit) == ["thesis.tex"] and not (far.base / "run").exists() and noted() == [] and far.slurm.calls("sbatch") == []


def test_a_submission_whose_answer_was_lost_is_found_by_the_same_command_and_not_made_twice(far: Far, kit_here) -> None:
    job(far)
    first = kit_here("submit", "job.yaml", "--name", "x")
    assert first.out.startswith("kit: submitted job 1001 on login\n")
    (run,) = history.runs()
    history.add(replace(run, id=""))  # nobody heard it
    for _ in range(2):
        again_ = kit_here("submit", "job.yaml", "--name", "x")
        history.add(replace(run, id=""))
        assert again_.out.splitlines()[0].endswith(" did submit job 1001, though its answer was lost: nothing is submitted now")
    assert len(far.slurm.calls("sbatch")) == 1
    # Other words are another job.
    assert "submitted job 1002" in kit_here("submit", "job.yaml", "--name", "x", "--time", "5", "--output", "other").out
    assert [submit._is_same(run, workdir) for workdir in (str(far.base), "/elsewhere")] == [False, False]


def test_a_connection_that_breaks_while_sbatch_answers_is_opened_again_and_finds_the_job(far: Far) -> None:
    run = known(far)
    (Path(run.there) / "run_script.sh").write_text("")
    far.lose_next_answer()
    answer = Host("login").call("login::submit", run.there, TOKEN, doing="nothing")
    assert answer.stdout.strip() == "job 1001" and len(far.slurm.calls("sbatch")) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("unsure", "sbatch on login: why not; whether the job is there is not known"),
        ("busy", "an earlier submission of r0 is still under way on login"),
        ("refused", "sbatch refuses: why not"),
        ("given-up", "cannot submit on login: why not"),
        ("", "cannot submit on login: why not"),
        ("job ", "cannot submit on login: why not"),
    ],
)
def test_each_answer_to_a_submission_means_what_it_says(answer: str, problem: str, far: Far) -> None:
    run = known(far)
    with pytest.raises(KitError) as error:
        submission._outcome(run, answer, " why\nnot", [])
    assert str(error.value).startswith(f"kit: {problem}\n")
    is_kept = answer in ("unsure", "busy")
    assert os.path.isdir(run.folder) == is_kept == isinstance(error.value, slurm.Unsure)


def test_an_answer_with_a_job_is_noted_in_the_history_and_in_the_record(far: Far) -> None:
    run = submission._outcome(known(far), "job 77", "", [])
    assert (run.id, noted(), rundir.load(Path(run.folder))["job_id"]) == ("77", [("r0", "77")], "77")


def test_a_run_that_was_never_submitted_is_given_up_and_nothing_of_it_is_kept(far: Far) -> None:
    run = known(far)
    (Path(run.there) / "env.sh").write_text("x")
    assert submission.give_up(run) is None
    assert not os.path.exists(run.folder) and history.runs() == []
    assert sorted(os.listdir(run.there)) == [".lock", MARK, "given-up"]
    # Whoever comes late submits nothing.
    assert Host("login").call("login::submit", run.there, TOKEN, doing="nothing").stdout.strip() == "given-up"
    assert far.slurm.calls("sbatch") == []


def test_a_run_that_did_arrive_is_not_given_up(far: Far) -> None:
    run = known(far)
    (Path(run.there) / "job_id").write_text("42\n")
    found = submission.give_up(run)
    assert found and found.id == "42" and os.path.isdir(run.folder) and noted() == [("r0", "42")]


def test_a_run_of_which_slurm_does_not_speak_is_neither_given_up_nor_submitted_again(far: Far) -> None:
    run = known(far)
    (Path(run.there) / "submitting").write_text(f"{os.uname().nodename} 1\n")
    far.slurm.answers(False)
    with pytest.raises(slurm.Unsure, match=r"still under way on login\n  fix: type the same command again in a minute"):
        submission.give_up(run)
    assert os.path.isdir(run.folder)


def test_a_run_without_an_answer_is_cancelled_by_giving_it_up(far: Far, kit_here) -> None:
    known(far)
    assert kit_here("cancel", "r0").out == "kit: r0 was never submitted, and will not be\n"
    run = known(far, "r1")
    far.slurm.job("42", folder=run.there)
    (Path(run.there) / "job_id").write_text("42\n")
    assert kit_here("cancel", "r1").out == "kit: r1 (42) is being cancelled\n"
    assert far.slurm.states() == {"42": "CANCELLED"}


# ---------------------------------------------------------------- what its state was


@pytest.mark.parametrize(("over_there", "job_id", "why"), [("job", "1001", ""), ("nothing", "", ""), ("unsure", "", "unsure")])
def test_a_run_is_settled_by_what_is_over_there(over_there: str, job_id: str, why: str, far: Far) -> None:
    run = known(far)
    if over_there != "nothing":
        (Path(run.there) / "submitting").write_text(f"{os.uname().nodename} 1\n")
    if over_there == "job":
        far.slurm.job("1001", folder=run.there)
    if over_there == "unsure":
        far.slurm.answers(False)
    found = mirror.settle(run)
    assert (found.id, found.why) == (job_id, why)
    assert noted() == [("r0", job_id)]
    asked = len(far.calls())
    assert mirror.settle(replace(run, id="5")).id == "5" and mirror.settle(replace(run, ssh="")).id == ""
    assert len(far.calls()) == asked


def test_an_array_is_noted_as_one_so_its_tasks_are_shown_later(far: Far, kit_here) -> None:
    job(far)
    kit_here("submit", "job.yaml", "--name", "x", "--array", "0-2")
    assert [(run.id, run.array) for run in history.runs()] == [("1001", "0-2")]


def test_while_the_host_does_not_answer_what_is_known_here_is_shown(far: Far, capfd) -> None:
    run = known(far, job_id="7", said="kit: node1: all ranks ended well\n")
    lost = known(far, "r1")
    far.down()
    shown = standing.of("login", [run, lost, replace(run, state="FAILED", why="x")], lambda *_: [])
    assert [(item.state, item.detail) for item in shown] == [
        ("UNKNOWN", "login cannot be reached; its logs are what was here at its submission"),
        ("UNKNOWN", "login has not said whether it was submitted"),
        ("FAILED", "x"),
    ]
    assert mirror.refresh(run) == run
    assert capfd.readouterr().err.count("login cannot be reached (ssh: No route to host)") == 1  # said once
    far.up()
    mirror.ask_again("login")
    assert [item.state for item in status.of([run])] == ["COMPLETED"]


# ---------------------------------------------------------------- once more


def submitted(far: Far, kit_here, *words: str) -> Path:
    job(far)
    assert kit_here("submit", "job.yaml", "--name", "x", "--output", "run", *words).code == 0
    return far.base / "run"


def test_an_interrupted_submission_goes_on_by_rerun_as_it_was_written(far: Far, kit_here) -> None:
    run = submitted(far, kit_here)
    (first,) = history.runs()
    for path in Path(first.there).glob("*job_id"):
        path.unlink()
    far.slurm.forget("1001")
    (Path(first.there) / "submitting").unlink()
    history.add(replace(first, id=""))
    done = kit_here("rerun", "run")
    assert (done.code, done.err) == (0, "") and "submitted job 1001 on login" in done.out
    assert noted() == [("x", "1001")] and history.runs()[0].folder == str(run)


def test_a_submission_that_did_arrive_is_found_by_rerun_before_anything_is_copied(far: Far, kit_here) -> None:
    run = submitted(far, kit_here)
    (first,) = history.runs()
    history.add(replace(first, id=""))
    (Path(first.there) / "run_script.sh").unlink()  # a copy would bring it back
    done = kit_here("rerun", "./run")
    assert done.code == 0 and done.out.startswith("kit: submitted job 1001 on login\n")
    assert noted() == [("x", "1001")] and run.is_dir() and len(far.slurm.calls("sbatch")) == 1
    assert not (Path(first.there) / "run_script.sh").exists()


def test_a_run_of_a_cluster_elsewhere_starts_once_more_beside_the_first(far: Far, kit_here) -> None:
    submitted(far, kit_here)
    done = kit_here("rerun", "run", "--output", "second")
    assert done.code == 0 and "submitted job 1002 on login" in done.out
    first, second = (Path(run.there) for run in history.runs())
    assert first.parent == second.parent and second.name.startswith("second-")
    assert re.search(rf'^#SBATCH --chdir="?{re.escape(str(second))}"?$', (second / "run_script.sh").read_text(), re.MULTILINE)


def plan_of(far: Far, kit_here):
    run = submitted(far, kit_here)
    return rerun._plan(run, rundir.load(run))


def test_the_plan_of_another_start_has_the_new_folder_and_the_image_that_is_named(far: Far, kit_here) -> None:
    before = plan_of(far, kit_here)
    assert again.place(before, "/here/second").startswith(f"{far.kit}/runs/second-")
    assert again.place(before, "/here/x-20260101-000000-ab") == f"{far.kit}/runs/x-20260101-000000-ab"
    plan = again.prepared(before, "/here/second", None)
    assert (plan.remote.run_dir, plan.remote.image, plan.image) == ("/here/second", None, before.image)
    image = far.base / "new image.sqsh"
    image.write_bytes(b"image")
    plan = again.prepared(before, "/here/second", str(image))
    digest = images.digest(image)
    assert (plan.remote.image, plan.remote.image_sha256, plan.image_sha256) == (str(image), digest, digest)
    assert plan.image == f"{far.kit}/images/new-image-{digest[:16]}.sqsh" and plan.fingerprint == images.fingerprint(image)
    (far.home / "theirs.sqsh").write_bytes(b"x")
    plan = again.prepared(before, "/here/second", str(far.home / "theirs.sqsh"))
    assert plan.remote.image  # this test's far side is this machine


@pytest.mark.parametrize(("lacks", "fix"), [("image", "put it back, or name another: --image FILE"), ("workdir", "make it again")])
def test_what_is_gone_over_there_is_named_before_anything_is_submitted(lacks: str, fix: str, far: Far, kit_here) -> None:
    before = plan_of(far, kit_here)
    gone = {"image": before._replace(image="/gone.sqsh"), "workdir": before._replace(workdir="/gone", remote=before.remote._replace(workdir=""))}[lacks]
    with pytest.raises(UsageError) as error:
        again.prepared(gone, "/here/second", None)
    path = getattr(gone, lacks)
    assert str(error.value) == f"kit: login has no {path} any more\n  fix: {fix}"


def test_only_a_run_that_nobody_heard_of_goes_on(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[Run] = []
    monkeypatch.setattr(submission, "finish", lambda _, noted: finished.append(noted))
    monkeypatch.setattr(commands, "say_submitted", lambda *_: None)
    run = known(far)
    assert rerun._goes_on(Path(run.folder), None, follow=False) and finished == [run]
    assert not rerun._goes_on(Path("/elsewhere"), None, follow=False)
    for other in (replace(run, id="5"), replace(run, ssh="", local=True), replace(run, state="FAILED")):
        history.add(other)
        assert not rerun._goes_on(Path(run.folder), None, follow=False)
    assert finished == [run]


# ---------------------------------------------------------------- the image's way over


@pytest.fixture
def image(far: Far) -> Path:
    path = far.base / "image.sqsh"
    path.write_bytes(os.urandom(200_000))
    (far.kit / "images").mkdir(parents=True)
    return path


def send(image: Path, far: Far, digest: str = "") -> Path:
    there = far.kit / "images/image-1.sqsh"
    submission.send_image(Host("login"), str(image), digest or images.digest(image), str(there))
    return there


@pytest.mark.parametrize("earlier", ["nothing", "the first part of it", "another file's part"])
def test_an_image_arrives_whole_whatever_an_earlier_copy_left(earlier: str, image: Path, far: Far, capfd) -> None:
    part = far.kit / "images/.image-1.sqsh.part"
    if earlier != "nothing":
        part.write_bytes(image.read_bytes()[:90_000] if "first" in earlier else b"x" * 90_000)
    there = send(image, far)
    assert there.read_bytes() == image.read_bytes() and not part.exists()
    assert far.calls().count("rsync") == (2 if "another" in earlier else 1)
    assert capfd.readouterr().err == "kit: copying image.sqsh to login, 195 KiB, once\n"
    assert send(image, far) == there and far.calls().count("rsync") <= 2  # it is there


def test_an_image_that_changes_on_its_way_is_refused(image: Path, far: Far) -> None:
    with pytest.raises(KitError, match="is not what is here: its sha256 differs\n  fix: was the file changed meanwhile"):
        send(image, far, "0" * 64)
    assert os.listdir(far.kit / "images") == []


def test_an_image_that_cannot_be_read_over_there_is_said(image: Path, far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "send", lambda *_, **__: None)  # as if the file was gone again
    with pytest.raises(KitError, match=r"cannot read the image on login: sha256sum: .*No such file"):
        send(image, far)


def test_an_image_that_was_cut_off_over_there_is_copied_again(far: Far, kit_here) -> None:
    (far.base / "my.sif").write_bytes(b"an image")
    job(far, JOB.replace("runtime: none", "runtime: apptainer") + "image: my.sif\n")
    assert kit_here("submit", "job.yaml", "--output", "first").code == 0
    (there,) = (far.kit / "images").glob("*.sif")
    there.write_bytes(b"an im")
    done = kit_here("submit", "job.yaml", "--output", "second")
    assert done.code == 0 and "kit: copying my.sif to login" in done.err
    assert there.read_bytes() == b"an image"
    assert "copying my.sif" not in kit_here("submit", "job.yaml", "--output", "third").err


def test_a_copy_that_ssh_cuts_is_tried_once_more(image: Path, far: Far, capfd) -> None:
    far.refuse_next_copy()
    assert send(image, far).read_bytes() == image.read_bytes()
    assert "kit: the connection to login broke (" in capfd.readouterr().err
    assert far.calls().count("rsync") == 2


def test_who_does_not_answer_twice_is_not_waited_for_again(far: Far) -> None:
    far.refuse_next()
    assert Host("login").call("login::run", "true", doing="x").returncode == 0
    far.down("Broken pipe")
    with pytest.raises(Unreachable, match=r"the connection to login broke \(ssh: Broken pipe\): x") as error:
        Host("login").call("login::run", "true", doing="x")
    assert error.value.begun and host.missed == {"login": "ssh: Broken pipe"}
    asked = len(far.calls())
    with pytest.raises(Unreachable, match="login cannot be reached"):
        Host("login").call("login::run", "true", doing="x")
    assert len(far.calls()) == asked


# ---------------------------------------------------------------- following it


@pytest.fixture
def watched(far: Far, monkeypatch: pytest.MonkeyPatch) -> watch.RemoteWatch:
    monkeypatch.setattr(follow, "period_s", lambda: 0.0)
    run = known(far, job_id="7", said="one\n")
    far.slurm.job("7", folder=run.there)
    with slurm.at("login"):
        yield watch.RemoteWatch(run, "7")


def test_a_job_is_followed_through_a_broken_connection_to_its_end(watched: watch.RemoteWatch, far: Far, capfd) -> None:
    log = Path(watched.run.folder, "log/slurm-7.out")
    assert watched.ended() is None and log.read_text() == "one\n"
    far.down()
    assert watched.ended() is None and watched.ended() is None
    assert host.missed == {}  # for the next try
    far.up()
    Path(watched.run.there, "log/slurm-7.out").write_text("one\ntwo\n")
    far.slurm.job("7", "FAILED", exit_code="3:0", folder=watched.run.there)
    ended = watched.ended()
    assert ended and (ended.name, ended.exit_code) == ("FAILED", 3)
    assert log.read_text() == "one\ntwo\n"
    said = capfd.readouterr()
    assert said.err.splitlines() == [
        "kit: the connection to login broke (ssh: No route to host); trying again",
        "kit: connection to login lost (ssh: No route to host); trying again; the job goes on meanwhile",
        "kit: login answers again",
    ]
    assert said.out == "kit: job 7 RUNNING\nkit: job 7 FAILED\n"


def test_a_connection_that_stays_away_ends_the_following(watched: watch.RemoteWatch, far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", -1.0)
    far.down()
    with pytest.raises(Unreachable, match="No route to host"):
        watched.ended()


def test_a_job_without_a_log_yet_is_no_error(watched: watch.RemoteWatch) -> None:
    Path(watched.run.there, "log/slurm-7.out").unlink()
    Path(watched.run.there, "log").rmdir()
    assert watched.ended() is None


def test_nobody_is_asked_before_the_period_is_over(watched: watch.RemoteWatch, far: Far) -> None:
    watched.next_s = time.monotonic() + 1000
    assert watched.ended() is None and far.calls() == []
