#!/usr/bin/env bash
# look.sh - what this machine is: a line for each thing, its words apart by tabs. It changes nothing.
#
#   look.sh CODE FOLDER...     what has python3 print the version of torch; the folders whose file systems are of interest
set -euo pipefail +o posix
export LC_ALL=C
shopt -s nullglob

look::machine() {
  local key value
  printf 'host\t%s\n' "${SLURMD_NODENAME:-${HOSTNAME}}"
  # nproc obeys these two, which are the user's for other programs.
  printf 'cpus\t%s\n' "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"
  while read -r key value _; do
    [[ "${key}" != MemTotal: ]] || printf 'memory_mb\t%s\n' "$((value / 1024))"
  done </proc/meminfo
}

look::gpus() {
  local names
  command -v nvidia-smi >/dev/null || return 0
  names="$(timeout 20 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null)" || return 0 # installed, but without a driver
  printf '%s\n' "${names}" | sed 's/^/gpu\t/'
}

look::tools() {
  local tool
  for tool in enroot apptainer docker podman; do
    ! command -v "${tool}" >/dev/null || printf 'tool\t%s\n' "${tool}"
  done
}

# The version of torch for the python3 that a job without a container would take; torch itself is not loaded.
look::torch() {
  local -r code="$1"
  local version
  version="$(timeout 20 python3 -c "${code}" 2>/dev/null)" || return 0
  printf 'torch\t%s\n' "${version}"
}

look::network() {
  local path
  for path in /sys/class/infiniband/*; do
    printf 'rdma\t%s\t%s\n' "${path##*/}" "$(cat "${path}"/ports/1/link_layer 2>/dev/null || true)"
  done
  for path in /sys/class/net/*; do
    case "${path##*/}" in lo | docker* | br-* | veth* | virbr* | cni*) continue ;; esac
    printf 'network\t%s\n' "${path##*/}"
  done
}

# Its type, KiB that are free, whether this user may write, and what tells whether two machines see the same one: its inode, its last change.
look::folder() {
  local -r folder="$1"
  local type free inode changed writable=no
  [[ -d "${folder}" ]] || return 0
  # A file server that is gone would keep df waiting.
  read -r type free < <(timeout 10 df --output=fstype,avail -- "${folder}" 2>/dev/null | tail -n 1) || return 0
  read -r inode changed < <(timeout 10 stat -c '%i %Y' -- "${folder}" 2>/dev/null) || return 0
  [[ ! -w "${folder}" ]] || writable=yes
  printf 'folder\t%s\t%s\t%s\t%s\t%s\t%s\n' "${folder}" "${type}" "${free}" "${writable}" "${inode}" "${changed}"
}

look::machine
look::gpus
look::tools
look::torch "$1"
look::network
for folder in "${@:2}"; do
  look::folder "${folder}"
done
