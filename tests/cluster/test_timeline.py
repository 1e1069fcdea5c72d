"""kit timeline of a real job on the Slurm cluster in Docker, one of whose nodes is made slow."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jobs import read, submit
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster

# Marks its first step as docs/timeline.md says.
PROGRAM = """\
sleep 1
printf '{"t": %s, "event": "first_step", "rank": %d}\\n' "${EPOCHREALTIME}" "${RANK}" >>"${KIT_EVENTS}"
"""

# As another job that is copying the same image on this node: it holds the lock until the other nodes have been ready for 8 s, and for
# three times what they needed.
SLOW = """
rm -rf /tmp/kit-1000 && install -d -m 700 /tmp/kit-1000 /tmp/kit-1000/images
lock="/tmp/kit-1000/images/.$1.sif.lock"
hold='until pgrep -f "[r]un_script.sh prepare"; do sleep 0.1; done
  SECONDS=0
  until (($(cat "$1"/log/*/events/ready.jsonl | wc -l) >= 2)); do sleep 0.1; done
  sleep "$((SECONDS > 2 ? 3 * SECONDS : 8))"'
setsid flock "${lock}" bash -c "${hold}" bash "$2" </dev/null >/dev/null 2>&1 &
while flock --nonblock "${lock}" true; do sleep 0.1; done
"""

ROW = re.compile(r"^. (\w+) +([\d.]+) s +([\d.]+) s +([\d.]+) s +(-|(?:for )?node\d)", re.MULTILINE)


def test_the_node_that_was_slow_to_prepare_is_named(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "program.sh").write_text(PROGRAM)
    (folder / "job.yaml").write_text("command: [bash, program.sh]\nlauncher: srun\nstage: local\n")
    image = ["-j", "3x2", "--image", str(kit_cluster.path(tiny / "image.sif")), "--runtime", "apptainer"]
    ask(kit_cluster, folder, "render", "job.yaml", *image, "--output", "rendered")
    fingerprint = json.loads(read(folder / "rendered/run.json"))["plan"]["container"]["fingerprint"]
    kit_cluster.run("node3", "bash", "-c", SLOW, "bash", fingerprint, f"{kit_cluster.path(folder)}/run")
    submit(kit_cluster, folder, "job.yaml", *image, "--output", "run", "--follow")

    shown = ask(kit_cluster, folder, "timeline", "run", "--svg", "picture.svg").stdout
    # phase: least, median, most, slowest
    rows = {found[0]: (*map(float, found[1:4]), found[4]) for found in ROW.findall(shown)}
    assert list(rows) == ["queue", "launch", "stage", "create", "wait", "container", "rendezvous", "step"], shown
    assert rows["stage"][3] == "node3" and rows["stage"][2] >= 8 > 2 * rows["stage"][1], shown
    assert rows["wait"][3] == "for node3" and rows["wait"][2] >= 4, shown
    assert rows["step"][0] >= 1 and rows["container"][0] > 0 and rows["queue"][3] == "-", shown
    assert [line.split()[0] for line in shown.splitlines()[2:5]] == ["node1", "node2", "node3"]
    bars = [line.split(maxsplit=1)[1] for line in shown.splitlines()[2:5]]
    assert [bar.count("s") > 10 for bar in bars] == [False, False, True] and [bar.count("-") > 10 for bar in bars] == [True, True, False], shown
    picture = ElementTree.fromstring(read(folder / "picture.svg"))
    assert {"node1", "node2", "node3"} <= set("".join(picture.itertext()).replace("\xa0", " ").split())


def ask(cluster: Cluster, place: Path, *arguments: str):
    return cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit "$@"', "bash", cluster.path(place), *arguments)
