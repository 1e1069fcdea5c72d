# messages.sh - what kit says to people, on standard error, each line behind the name of the node that says it. No program reads it.
# Where the disk with the log is full, the run goes on without. Also functions that several scripts share.

kit::node() { printf '%s' "${SLURMD_NODENAME:-${HOSTNAME}}"; }
kit::say() { printf 'kit: %s: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$*" >&2 || true; } # without a fork
kit::error() { printf 'kit: error: %s: %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" "$2" >&2 || true; }
kit::warn() { printf 'kit: warning: %s: %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" "$2" >&2 || true; }

# kit::die PROBLEM FIX [CAUSE] - CAUSE is the name that `kit why` has for it. The first node learns it from the event.
kit::die() {
  [[ -z "${KIT_EVENTS:-}" ]] || event::note node_refused cause "${3:-refused}" problem "$1" fix "$2"
  kit::error "$1" "$2"
  exit 1
}

# kit::if_there FUNCTION WORD... - calls it where this run has the file that defines it.
kit::if_there() { ! declare -F "$1" >/dev/null || "$@"; }

# kit::split NAME SEPARATOR TEXT - sets the array of that name. `read -a <<<` would write to /tmp before bash 5.1, and that may be full.
kit::split() {
  local - IFS="$2"
  local -n kit_parts="$1"
  set -f
  # shellcheck disable=SC2206  # it is to be split
  kit_parts=($3)
}

# kit::await_end PROCESS SECONDS - returns when the process has ended, or these are over.
kit::await_end() {
  local -i kit_tries
  for ((kit_tries = 0; kit_tries < 20 * $2; kit_tries++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
}

# kit::hear SECONDS COMMAND... - prints what it says, and returns its code; 124 where these are over. Unlike $(...) and `timeout` it waits
# neither for what the command leaves behind nor for a command that cannot be killed.
kit::hear() {
  local kit_out kit_part kit_said='' kit_rc=''
  # Not a subshell: it would keep open what this shell has put aside of its own output. What sh says of a signal is not the command's.
  exec {kit_out}< <(exec sh -c '"$@" 2>&1 && set -- 0 || set -- "$?"; printf "\0ended %d\0" "$1"' sh "${@:2}" 2>/dev/null </dev/null)
  while [[ -z "${kit_rc}" ]] && IFS= read -r -d '' -t "$1" -u "${kit_out}" kit_part; do
    if [[ "${kit_part}" =~ ^ended\ ([0-9]+)$ ]]; then kit_rc="${BASH_REMATCH[1]}"; else kit_said+="${kit_part}"; fi
  done
  exec {kit_out}<&-
  printf '%s' "${kit_said}"
  return "${kit_rc:-124}"
}

# kit::start_again [NODES] - prints the command that starts this job again, without those nodes: of an array this task alone. The values of
# secrets are gone when a run has ended, and kit alone reads them anew.
kit::start_again() {
  local -r task="${SLURM_ARRAY_TASK_ID:-}"
  local without="${1:-}" option=''
  if [[ -n "${without}" ]]; then
    # sbatch takes the option in place of the line that leaves other nodes out.
    without="$(sed -n 's/^#SBATCH --exclude="\{0,1\}\([^"]*\)"\{0,1\}$/\1,/p' "${KIT_RUN_DIR}/run_script.sh")${without}"
    printf -v option -- '--exclude=%q ' "${without}"
  fi
  if [[ -n "${KIT_LOOPBACK:-}" && -z "${without}" ]]; then # kit run: without Slurm, and the run is that task already
    printf 'kit rerun %q' "${KIT_RUN_DIR}"
  elif [[ -z "${KIT_SECRETS:-}" ]]; then
    printf 'sbatch %s%s%q' "${task:+--array=${task} }" "${option}" "${KIT_RUN_DIR}/run_script.sh"
  else
    printf 'kit rerun %q%s' "${KIT_RUN_DIR}" "${task:+ --task ${task}}"
    [[ -z "${without}" ]] || printf ', with the line #SBATCH --exclude=%s in its run_script.sh' "${without}"
  fi
}

# kit::last_line - prints the last line of its input that is not empty: an error's words.
kit::last_line() { grep -v '^[[:space:]]*$' | tail -n 1; }

# kit::first_ten - prints the first ten of the nodes on its input, and how many there are besides.
kit::first_ten() {
  local -a nodes
  mapfile -t nodes < <(sort -V) # by its long name busybox does not know it
  printf '%s' "${nodes[*]:0:10}"
  ((${#nodes[@]} <= 10)) || printf ' and %d more' "$((${#nodes[@]} - 10))"
}
