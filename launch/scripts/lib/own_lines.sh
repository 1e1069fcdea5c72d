#!/usr/bin/env bash
# own_lines.sh - runs the job's own lines of bash, which lie beside run_script.sh in a file named after their key. The first one
# that fails ends them.
#
# own_lines.sh KEY WORD... - for setup and host_setup the WORDs are the command that takes this shell's place behind the lines;
# for a script they are its arguments.
# only: setup.sh host_setup.sh script.sh
set -eETo pipefail +o posix +o noclobber # ET: their lines are counted in functions, too. Not u: scripts to be sourced often read variables that are not set
shopt -u failglob
# Exported in the user's shell, they would give what these lines start the options of this one.
export -n SHELLOPTS BASHOPTS
readonly KIT_KEY="$1" KIT_LINES="${KIT_RUN_DIR}/$1.sh"
shift
KIT_WORDS=("$@") KIT_AT=0 KIT_BEFORE=0 KIT_FAILED='' KIT_OWN_PATH="${KIT_PATH:-${PATH}}"

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/events.sh"

# lines::ended CODE FILE COMMAND - names the line with which the job's lines ended this shell, by a failure or by `exit`.
lines::ended() {
  local -ri code="$1"
  [[ "$2" != "${KIT_LINES}" ]] || KIT_AT="${KIT_BEFORE}" # bash has counted the trap that starts this as one more of their commands
  local -r number="${KIT_FAILED:-${KIT_AT}}"
  local line
  trap - EXIT DEBUG ERR
  PATH="${KIT_OWN_PATH}" # theirs, or the job's, may lead nowhere
  line="$(sed -n "${number}p" "${KIT_LINES}" 2>/dev/null || true)"
  line="line ${number} of ${KIT_KEY} ended with code ${code}: ${line#"${line%%[! ]*}"}"
  if [[ "${KIT_KEY}" == script ]]; then
    ((code == 0)) || kit::say "${line}"
    exit "${code}"
  fi
  # Where a signal has ended it, COMMAND is what ran then; behind an `exit`, that or what began the lines.
  # shellcheck disable=SC2016  # COMMAND is as it is written
  if ((code == 0)) && [[ "$3" != 'source "${KIT_LINES}"' && ! "$3" =~ (^|[^a-z_])exit([^a-z_]|$) ]]; then
    [[ "${KIT_KEY}" == host_setup ]] || exit 143 # kit has ended this node, since another one failed
    KIT_SIGNAL=TERM
  fi
  [[ "${KIT_KEY}" != host_setup ]] || ((code != 143)) || KIT_SIGNAL=TERM # who ends a job tells each of its processes
  local fix="correct that line in the job file; what it said itself is in the log, before this"
  [[ "${KIT_KEY}" != host_setup || -z "${KIT_LOOPBACK:-}" ]] || fix+="; if it is for a cluster's nodes alone: kit run --host-setup true"
  ((code > 0)) || fix="remove the exit: nothing after it runs, so the program never starts"
  [[ "${KIT_KEY}" != host_setup ]] || lines::hand_over "${line}" "${fix}"
  kit::die "${line}" "${fix}" setup-failed
}

# lines::hand_over [PROBLEM FIX] - behind host_setup: the WORDs start run_script.sh, which ends a job in order, and is told why it is to.
lines::hand_over() {
  export KIT_HOST_IS_SET_UP=yes KIT_SIGNAL KIT_NEAR_END KIT_HOST_PROBLEM="${1:-}" KIT_HOST_FIX="${2:-}"
  exec "${KIT_WORDS[@]}"
}

# Before each command of theirs, and at a failure, which may be one that bash begins no command for: ( ... ).
trap '[[ "${BASH_SOURCE[0]}" != "${KIT_LINES}" ]] || KIT_BEFORE="${KIT_AT}" KIT_AT="${LINENO}"' DEBUG
trap '[[ "${BASH_SOURCE[0]}" != "${KIT_LINES}" ]] || KIT_FAILED="${LINENO}"' ERR
trap 'lines::ended "$?" "${BASH_SOURCE[0]}" "${BASH_COMMAND}"' EXIT
if [[ "${KIT_KEY}" == script ]]; then
  # A signal is for the program, which has it, too: this shell sees how that ends.
  trap : TERM INT HUP USR1 USR2
  # Under spawn the script is its node's only task; not exported, since the ranks that it starts are others.
  : "${RANK:=${NODE_RANK:-0}}" "${LOCAL_RANK:=0}" "${WORLD_SIZE:=${NNODES:-1}}"
  # shellcheck source=/dev/null
  source "${KIT_LINES}"
  exit
fi
[[ "${KIT_KEY}" != host_setup ]] || trap 'KIT_NEAR_END=yes' USR1
set --
# shellcheck source=/dev/null
source "${KIT_LINES}"
trap - EXIT DEBUG ERR
[[ "${KIT_KEY}" != host_setup ]] || lines::hand_over
IFS=' ' # theirs may be another
# shellcheck disable=SC2086  # the names of the secrets, which only the program is to have: it takes them itself
unset ${KIT_SECRETS:-}
exec "${KIT_WORDS[@]}"
