#!/usr/bin/env bash
# Makes sure that a Docker Engine answers, and that the tools are there which tests call. Quiet and quick when so.
#
#   engine.sh            install and start one where that can be done (root, Debian or Ubuntu)
#   engine.sh --check    only say whether one answers
#
# Exit status: 0 it answers, 3 it does not and cannot be had here, 1 it should but does not.
# KIT_DOCKER_ROOT: where an engine started here keeps its data (/var/lib/kit-docker).
set -euo pipefail
here="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
# shellcheck source=tests/cluster/lib.sh
source "${here}/lib.sh"

readonly no_engine=3
readonly policy=/usr/sbin/policy-rc.d

engine::answers() {
  command -v docker >/dev/null && timeout 60 docker info >/dev/null 2>&1
}

# Prints which tools are missing that tests call on this machine, beside the engine.
engine::missing_tools() {
  local tool
  for tool in mksquashfs tar2sqfs rsync ssh bwrap zsh fish mpirun busybox; do
    type -P "${tool}" >/dev/null || printf '%s ' "${tool}"
  done
  engine::has_sshd || printf 'sshd '
}

# It is not on every user's PATH.
engine::has_sshd() {
  type -P sshd >/dev/null || [[ -x /usr/sbin/sshd ]]
}

# Debian's sshd would serve the whole network from its installation on. The tests start their own, on loopback.
engine::deny_sshd() {
  if [[ ! -e "${policy}" ]]; then
    trap 'rm -f "${policy}"' EXIT
    # shellcheck disable=SC2016  # for the shell that runs it
    printf '%s\n' '#!/bin/sh' 'case "$1" in ssh | ssh.* | sshd*) exit 101 ;; esac' >"${policy}"
    chmod 755 "${policy}"
  fi
}

engine::install() {
  local -a packages=(debootstrap podman squashfs-tools squashfs-tools-ng docker-registry rsync openssh-client
    bubblewrap zsh fish openmpi-bin busybox)
  local log new_sshd='' has_engine=''
  # Debian's engine would take the place of Docker's own.
  if engine::answers || command -v dockerd >/dev/null; then has_engine=yes; else packages+=(docker.io iptables); fi
  if ! engine::has_sshd; then
    new_sshd=yes packages+=(openssh-server)
    engine::deny_sshd
  fi
  log="$(mktemp -t kit-engine-apt.XXXXXX)"
  say "installing ${packages[*]}"
  apt-get update >"${log}" 2>&1 || die "apt-get update failed" "read ${log}"
  # Since trixie the client is a package of its own.
  if [[ -z "${has_engine}" ]] && apt-cache show docker-cli >/dev/null 2>&1; then
    packages+=(docker-cli)
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" \
    >>"${log}" 2>&1 || die "apt-get failed to install ${packages[*]}" "read ${log}"
  rm -f "${log}"
  if [[ -n "${new_sshd}" && -d /run/systemd/system ]]; then
    systemctl disable --quiet --now ssh.service ssh.socket || true # nor from the next start of the machine on
  fi
}

engine::wait() {
  local -r log="$1"
  local tries
  for ((tries = 0; tries < 240; tries++)); do
    if engine::answers; then
      return
    fi
    sleep 0.5
  done
  die "dockerd was started but does not answer" "read ${log}"
}

# engine::forget FILE... - removes pid files whose process is another one now: after a restart of the machine
# dockerd would take it for a running engine.
engine::forget() {
  local file pid comm
  for file in "$@"; do
    [[ -r "${file}" ]] || continue
    read -r pid <"${file}" || true
    comm="$(cat "/proc/${pid:-0}/comm" 2>/dev/null || true)"
    [[ "${comm}" == dockerd || "${comm}" == containerd ]] || rm -f "${file}"
  done
}

engine::start() {
  if [[ -d /run/systemd/system ]]; then
    systemctl start docker
    engine::wait "the journal: journalctl -u docker"
    return
  fi
  local -r root="${KIT_DOCKER_ROOT:-/var/lib/kit-docker}"
  local -r log="${root}/dockerd.log"
  mkdir -p "${root}"
  engine::forget "${root}/dockerd.pid" /var/run/docker/containerd/containerd.pid
  say "starting dockerd, data in ${root}, log in ${log}"
  # A session of its own, and none of our files open: it outlives the caller.
  setsid dockerd --data-root "${root}" --pidfile "${root}/dockerd.pid" \
    </dev/null >"${log}" 2>&1 &
  disown
  engine::wait "${log}"
}

engine::main() {
  local missing
  missing="$(engine::missing_tools)"
  if engine::answers; then
    [[ -n "${missing}" && "${1:-}" != --check ]] || return 0
    if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
      die "tests need what is not installed here: ${missing% }" "install it, or run ${here}/engine.sh as root on Debian or Ubuntu" "${no_engine}"
    fi
    engine::install
    return
  fi
  if [[ "${1:-}" == --check ]]; then
    die "no Docker Engine answers" "run ${here}/engine.sh as root" "${no_engine}"
  fi
  if [[ -n "${DOCKER_HOST:-}" ]]; then
    die "no Docker Engine answers at DOCKER_HOST=${DOCKER_HOST}" \
      "start that engine, or unset DOCKER_HOST to have one here" "${no_engine}"
  fi
  if [[ "$(id -u)" != 0 ]]; then
    die "no Docker Engine answers, and user $(id -un) may not start one" \
      "run ${here}/engine.sh as root, or join the group docker" "${no_engine}"
  fi
  if [[ -n "${missing}" ]] || ! command -v dockerd >/dev/null; then
    command -v apt-get >/dev/null || die "no Docker Engine here, and no apt-get to install one" \
      "install Docker Engine 20.10 or later" "${no_engine}"
    engine::install
  fi
  engine::answers || engine::start
}

engine::main "$@"
