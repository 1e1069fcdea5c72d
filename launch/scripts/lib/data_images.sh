#!/usr/bin/env bash
# data_images.sh - mounts squashfs files for a command, in a mount namespace of its own: nobody else sees the mounts, and they are gone
# with the last process in it.
#
#   data_images.sh FILE FOLDER... -- COMMAND...     mounts each FILE at its FOLDER, and becomes the COMMAND
#
# only: data
set -euo pipefail

# data_images::serve FILE FOLDER - in a process group of its own, whose last tie is the process that becomes the COMMAND. When that
# ends, however it does, the kernel finds a group without ties that has a stopped process, and sends SIGHUP to all of the group.
data_images::serve() {
  local -i tries=0
  # Slurm sends these to all processes of a step, and the ranks may still read while they save. libfuse leaves ignored signals alone.
  trap '' TERM INT USR1 USR2
  trap 'kill -KILL 0' EXIT
  set +m # squashfuse is to be in the same group
  squashfuse -f "$1" "$2" </dev/null &
  until mountpoint --quiet -- "$2"; do
    kill -0 "$!" 2>/dev/null && ((tries++ < 600)) || exit 1
    sleep 0.05
  done
  while true; do kill -STOP "${BASHPID}"; done # Slurm sends SIGCONT, too
}

set -m
while [[ "$1" != -- ]]; do
  (umask 077 && mkdir -p -- "$2")
  code=0
  data_images::serve "$1" "$2" &
  wait "$!" 2>/dev/null || code=$?
  ((code == 128 + $(kill -l STOP))) || {
    printf 'squashfuse cannot mount %s\n' "$1" >&2
    exit 1
  }
  shift 2
done
set +m
disown -a 2>/dev/null # which warns that they are stopped
exec "${@:2}"
