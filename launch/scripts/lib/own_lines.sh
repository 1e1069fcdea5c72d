#!/usr/bin/env bash
# own_lines.sh - runs the job's own lines of bash, which lie beside run_script.sh in a file named after their key. The first one
# that fails ends them.
#
# own_lines.sh KEY WORD... - for setup and host_setup the WORDs are the command that takes this shell's place behind the lines;
# for a script they are its arguments.
# only: lines
set -eEo pipefail +o posix # E: also in functions of theirs. Not u: scripts to be sourced often read variables that are not set
readonly KIT_KEY="$1"
shift
KIT_WORDS=("$@") KIT_FAILED_AT=0

# shellcheck source=lib/messages.sh
source "${KIT_RUN_DIR}/lib/messages.sh"
# shellcheck source=lib/events.sh
source "${KIT_RUN_DIR}/lib/events.sh"

# lines::ended CODE - they ended this shell themselves, by a failure or by `exit`.
lines::ended() {
  local line=''
  trap - EXIT
  ((KIT_FAILED_AT == 0)) || line="$(sed -n "${KIT_FAILED_AT}p" "${KIT_RUN_DIR}/${KIT_KEY}.sh" 2>/dev/null || true)"
  if [[ "${KIT_KEY}" == script ]]; then
    ((KIT_FAILED_AT == 0)) || kit::say "line ${KIT_FAILED_AT} of the job's script ended with code $1:${line:+ ${line}}"
    exit "$1"
  fi
  ((KIT_FAILED_AT > 0)) || kit::die "the lines of ${KIT_KEY} ended with exit, code $1: nothing comes behind them" "take the exit out" setup-failed
  kit::die "line ${KIT_FAILED_AT} of ${KIT_KEY} ended with code $1:${line:+ ${line}}" \
    "correct it in the job file; what it said is above; add || true where its failure does not matter" setup-failed
}

trap '((BASH_SUBSHELL > 0)) || KIT_FAILED_AT="${LINENO}"' ERR
trap 'lines::ended "$?"' EXIT
if [[ "${KIT_KEY}" == script ]]; then
  # A signal is for the program, which has it, too: this shell sees how that ends.
  trap : TERM INT HUP USR1 USR2
  # Under spawn the script is its node's only task; not exported, since the ranks that it starts are others.
  : "${RANK:=${NODE_RANK:-0}}" "${LOCAL_RANK:=0}" "${WORLD_SIZE:=${NNODES:-1}}"
  # shellcheck source=/dev/null
  source "${KIT_RUN_DIR}/script.sh"
  exit
fi
set --
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${KIT_KEY}.sh"
trap - ERR EXIT
# shellcheck disable=SC2086  # the names of the secrets, which only the program is to have: it takes them itself
unset ${KIT_SECRETS:-}
exec "${KIT_WORDS[@]}"
