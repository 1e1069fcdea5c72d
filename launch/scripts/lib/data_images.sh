#!/usr/bin/env bash
# data_images.sh - mounts squashfs files for a container that Enroot starts. Only the container's processes see the mounts, which are gone
# with the last of these processes, however it ends.
#
#   data_images.sh FILE FOLDER... -- enroot start...     mounts each FILE at its FOLDER, and becomes Enroot
set -euo pipefail

# data_images::serve FILE FOLDER... - mounts the files in this mount namespace, and takes the mounts out of it again once the container has
# them in its own. The container's end is then the end of the mounts, and with them of squashfuse. The input ends when Enroot, in its last
# step, closes what it inherited, or when Enroot itself has ended.
data_images::serve() {
  local -a mounted=()
  # Slurm sends these to all processes of a step, and the ranks may still read while they save. libfuse leaves ignored signals alone.
  trap '' TERM INT HUP USR1 USR2
  while (($#)); do
    squashfuse -f "$1" "$2" </dev/null &
    data_images::await "$2" "$!" || { kill -KILL "$!" 2>/dev/null || true && break; }
    mounted+=("none $2 none x-detach")
    shift 2
  done
  (($#)) || read -r || true
  ((${#mounted[@]} == 0)) || printf '%s\n' "${mounted[@]}" | enroot-mount -
  wait
}

# data_images::await FOLDER PROCESS - returns when something is mounted there; fails if the process ends before that.
data_images::await() {
  local -i tries=0
  until mountpoint --quiet -- "$1"; do
    kill -0 "$2" 2>/dev/null && ((tries++ < 1500)) || return 1
    sleep 0.02
  done
}

data=()
while [[ "$1" != -- ]]; do
  (umask 077 && mkdir -p -- "$2")
  data+=("$1" "$2")
  shift 2
done
exec {kit_enroot}> >(data_images::serve "${data[@]}")
server=$!
for ((i = 0; i < ${#data[@]}; i += 2)); do
  data_images::await "${data[i + 1]}" "${server}" || {
    printf 'squashfuse cannot mount %s\n' "${data[i]}" >&2
    exit 1
  }
done
exec "${@:2}"
