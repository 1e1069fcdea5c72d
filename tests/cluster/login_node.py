"""The controller as a login node that a laptop reaches by ssh: its sshd, keys, and ways to break the connection."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from slurm_cluster import Cluster, until

SSH_DIR = "/shared/laptop kit's"
SECRET = "never 'to' be seen"
SSH_DIR_QUOTED = shlex.quote(SSH_DIR)
PORT = 2222  # on the network of the cluster's containers alone

PROGRAM = """\
for ((line = 1; line <= ${2:-1}; line++)); do echo "line ${line} of rank ${RANK}"; sleep 0.1; done
sleep "${3:-0}"
if (($1 > 0)); then # the first rank that fails ends the other, which is to have said all
  : >"said.${SLURM_JOB_ID}.${RANK}"
  until [[ -e "said.${SLURM_JOB_ID}.$((1 - RANK))" ]]; do sleep 0.1; done
fi
exit "$1"
"""

# Notes every call; and where the file `cut` names a number, the next connection that copies an image ends after so many bytes of it.
WRAPPER = """\
#!/bin/bash
printf '%s\\n' "$*" >>{home}/calls
if [[ "$*" == *'rsync --server'*--append* && -e {home}/cut ]]; then
  bytes="$(<{home}/cut)"
  rm {home}/cut
  stdbuf -o0 head -c "$bytes" | /usr/bin/ssh -F {home}/ssh_config "$@"
  exit 255
fi
exec /usr/bin/ssh -F {home}/ssh_config "$@"
"""
# Stands in the way to the real one: waits before it, or after it, as long as a file says so.
SLOW_SBATCH = """\
#!/bin/bash
hold() { while [[ -e /tmp/hold-$1 ]]; do : >/tmp/held-$1.$$; sleep 0.05; done; }
hold before
/usr/bin/sbatch "$@"
status=$?
hold after
exit "$status"
"""


@dataclass
class Laptop:
    """This machine with a home of its own: no Slurm, an ssh that knows the alias `login`, and a profile of it."""

    cluster: Cluster
    home: Path
    project: Path
    ssh: Path  # a wrapper with the test's own ssh configuration

    @property
    def ssh_dir(self) -> str:
        return SSH_DIR

    @property
    def sockets(self) -> Path:
        return self.home / "run/kit"

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": self.home, "XDG_STATE_HOME": self.home / "state", "XDG_CONFIG_HOME": self.home / "config", "XDG_CACHE_HOME": self.home / "cache"}
        path = f"{self.ssh.parent}:{os.environ['PATH']}"
        return {**os.environ, **{name: str(value) for name, value in own.items()}, "PATH": path, "XDG_RUNTIME_DIR": str(self.home / "run"), "PASSED_ON": SECRET}

    def kit(self, *arguments: str, code: int | None = 0, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.line(*arguments), cwd=self.project, env=self.environment, capture_output=True, text=True, timeout=timeout_s)
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.line(*arguments), cwd=self.project, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def asked(self) -> int:
        """How often kit has called ssh for a command."""
        calls = re.split(r"\n(?=-a )", (self.home / "calls").read_text())  # a command may be of several lines
        return sum(" -O check " not in call for call in calls)

    @staticmethod
    def line(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "kit", *arguments]

    def there(self, *command: str, root: bool = False, check: bool = True) -> str:
        return self.cluster.run("ctl", *command, root=root, check=check).stdout

    @property
    def work(self) -> str:
        """The project's folder there."""
        return f"{self.ssh_dir}/work/{self.project.name}"

    def runs(self) -> list[str]:
        """The names of the project's run directories there."""
        return self.there("bash", "-c", 'ls "$1/runs" 2>/dev/null; true', "bash", self.work).split("\n")[:-1]

    def age_history(self) -> None:
        """Lets some minutes go by, after which Slurm's answer settles a submission."""
        text = "import json, pathlib; p = pathlib.Path.home() / '.local/state/kit/runs.jsonl'; lines = [json.loads(l) for l in p.read_text().splitlines()]; "
        text += "p.write_text(''.join(json.dumps({**l, 'created_s': l['created_s'] - 300}) + chr(10) for l in lines))"
        self.there("python3", "-c", text)

    def hold(self, when: str) -> None:
        """The next sbatch waits before it asks Slurm, or after, until `release`."""
        self.there("bash", "-c", f"rm -f /tmp/held-*; : >/tmp/hold-{when}", root=True)

    def wait_held(self, when: str, count: int = 1) -> None:
        until(lambda: len(self.there("bash", "-c", f"compgen -G '/tmp/held-{when}.*'; true").split()) == count, 120, "sbatch was not called")

    def release(self) -> None:
        self.there("bash", "-c", "rm -f /tmp/hold-*", root=True)

    def kill_all_there(self) -> None:
        """As a site does that ends all processes of a user who has logged out."""
        self.there("bash", "-c", "pkill -KILL -u ada -f 'bash -s|/sbatch|^sbatch|/kit-[0-9]'; true", root=True)

    def jobs(self) -> list[str]:
        """All jobs of ada that Slurm remembers, by the folder they work in."""
        return self.there("squeue", "--me", "--noheader", "--states=all", "--format=%Z").splitlines()

    def cut(self) -> None:
        """Kills the connection at the login node: what runs there goes on, and nobody hears its answer."""
        self.there("pkill", "-KILL", "-f", "^sshd(-session)?: ada", root=True, check=False)

    def stop_sshd(self) -> None:
        self.there("bash", "-c", "kill $(cat /run/kit-sshd.pid); pkill -KILL -f '^sshd(-session)?: ada'; true", root=True)
        until(lambda: not self._answers(), 60, "sshd does not stop")

    def _answers(self) -> bool:
        return "up" in self.there("bash", "-c", f"nc -z 127.0.0.1 {PORT} && echo up; true", root=True)

    def start_sshd(self) -> None:
        if self._answers():
            return
        options = f"-p {PORT} -o PidFile=/run/kit-sshd.pid -o UsePAM=no -o PasswordAuthentication=no -o X11Forwarding=yes -o MaxStartups=100"
        # An account with no password at all counts as locked.
        self.there("bash", "-c", f"usermod -p '*' ada && mkdir -p /run/sshd && $(type -P sshd || echo /usr/sbin/sshd) {options}", root=True)
        until(self._answers, 60, "sshd does not start")


def make(cluster: Cluster, home: Path) -> Laptop:
    """Makes keys, starts sshd on the controller, and writes the profile `far`."""
    address = cluster.run("ctl", "hostname", "-I").stdout.split()[0]
    for folder in ("bin", "run", "keys", "config/kit/clusters", "project"):
        (home / folder).mkdir(parents=True, mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / "keys/id")], check=True)
    public = (home / "keys/id.pub").read_text().strip()
    cluster.run("ctl", "bash", "-c", 'mkdir -p -m 700 ~/.ssh && printf "%s\\n" "$1" >~/.ssh/authorized_keys', "bash", public)
    cluster.run("ctl", "ssh-keygen", "-A", root=True)
    (home / "ssh_config").write_text(
        f"Host login\n  HostName {address}\n  Port {PORT}\n  User ada\n  IdentityFile {home}/keys/id\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {home}/keys/known_hosts\n  ForwardAgent yes\n  ForwardX11 yes\n"
    )
    ssh = home / "bin/ssh"
    ssh.write_text(WRAPPER.format(home=home))
    ssh.chmod(0o755)
    (home / "config/kit/clusters/far.yaml").write_text(f"ssh: login\nssh_dir: {SSH_DIR}\n")
    cluster.run("ctl", "bash", "-c", 'printf "%s" "$1" >/usr/local/bin/sbatch && chmod 755 /usr/local/bin/sbatch', "bash", SLOW_SBATCH, root=True)
    laptop = Laptop(cluster, home, home / "project", ssh)
    laptop.release()
    laptop.start_sshd()
    return laptop
