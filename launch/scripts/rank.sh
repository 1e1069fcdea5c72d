# shellcheck shell=bash
# rank.sh - how launchers start a rank: with a log of its own, and with a note of its exit code, which torchrun would
# turn into 1, and of which srun would report the largest.

# shellcheck source=peers.sh
source "${KIT_SCRIPTS}/peers.sh"

# rank::run PROGRAM... - RANK and LOCAL_RANK are set; KIT_SIGNALED is "group" where signals come to the program by
# themselves, as torchrun sends them; KIT_LOGGED is "node" where it is the node's one program. Ends this shell with the program's exit code.
rank::run() {
  local -r kit_file="${KIT_LOG_DIR}/rank${RANK}" kit_path="${PATH}"
  PATH="${KIT_PATH:-${PATH}}"
  rm -f -- "${kit_file}.failed" # of an attempt before torchrun's restart
  # The log of an attempt before, when Slurm started the job again, is kept.
  ((${SLURM_RESTART_COUNT:-0} == 0)) || printf 'kit: %s: attempt %d\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$((SLURM_RESTART_COUNT + 1))" >>"${kit_file}.out"
  exec {kit_asking}>/dev/null {kit_watching}>/dev/null
  [[ -z "${KIT_CHECKPOINT_FILE:-}" ]] || exec {kit_asking}> >(rank::ask_for_checkpoint)
  # MPI has other ways to meet, and TensorFlow other words for it.
  local kit_has_peers='' kit_before=''
  [[ -z "${KIT_STAMPS:-}" || "${KIT_LAUNCHER:-}" == @(mpi|tensorflow) ]] || ((${WORLD_SIZE:-NNODES * NPROC_PER_NODE} == 1)) || kit_has_peers=yes
  [[ -z "${kit_has_peers}" || "${KIT_LAUNCHER:-}" != spawn ]] || kit_before="$(peers::connections '[4568]')"
  [[ -z "${kit_has_peers}" ]] || exec {kit_watching}> >(
    exec {kit_asking}>&- >/dev/null 2>&1
    peers::watch
  )
  # Both streams in one file, in order; and line by line, so that ranks do not cut into each other, to the node's log.
  exec {kit_console}>&1 > >(
    trap '' TERM INT HUP USR1 USR2 # it ends with the program's output, not with a signal to the program
    exec {kit_asking}>&- {kit_watching}>&-
    tee -a -- "${kit_file}.out" | rank::prefix "[${KIT_LOGGED:-rank}${RANK}] "
  ) 2>&1
  local -r kit_logger=$!

  rank::stamp
  local kit_stopped='' kit_code=0
  if [[ "${KIT_SIGNALED:-}" == group ]]; then
    # The program acts on it, and this shell stays to see its end.
    trap 'kit_stopped=1' TERM INT HUP
    trap : USR1 USR2
    # Its id first: a subshell becomes the program. Of a signal that kills it, this shell would write a line of its own.
    {
      (
        exec 2>&1
        rank::tell "${BASHPID}"
        rank::become "$@"
      ) || kit_code=$?
    } 2>/dev/null
  else
    rank::start_and_pass_signals_on "$@"
  fi
  # A rank that was told to stop did not cause the failure; unless what it said last is an exception: see blame.sh.
  if ((kit_code != 0)) && [[ -z "${kit_stopped}" ]]; then
    printf '%d %s %d\n' "${kit_code}" "${SLURMD_NODENAME:-${HOSTNAME}}" "${LOCAL_RANK}" >"${kit_file}.failed"
  fi
  rank::stamp_end

  exec {kit_asking}>&- {kit_watching}>&-
  # Let the last lines through; but a process that the program left behind may hold its output open for ever.
  exec >&"${kit_console}" 2>&1
  local -i kit_waited
  for ((kit_waited = 0; kit_waited < 40; kit_waited++)); do
    kill -0 "${kit_logger}" 2>/dev/null || break
    sleep 0.05
  done
  ((kit_code != 0)) || [[ -z "${kit_has_peers}" ]] || peers::judge "$@"
  # The ranks that miss this one are to say so before they are ended for it: then the one that says nothing is known.
  if ((kit_code != 0 && ${WORLD_SIZE:-1} > 1)) && [[ -z "${kit_stopped}" ]]; then sleep 1; fi
  exit "${kit_code}"
}

# rank::become PROGRAM... - the program in this shell's place, with all that the job says.
rank::become() {
  secrets::take
  PATH="${kit_path}"
  exec {kit_asking}>&- {kit_watching}>&- "$@"
}

# rank::tell PROCESS - which one the program is, to those that wait for it.
rank::tell() {
  printf '%d\n' "$1" >&"${kit_asking}"
  printf '%d\n' "$1" >&"${kit_watching}"
}

# rank::stamp - one line in the file of this node: when its task began outside the container, when it was inside, and now,
# when the program starts. The program may add a line of its own: docs/timeline.md.
rank::stamp() {
  [[ -n "${KIT_STAMPS:-}" ]] || return 0 # by hand
  stamp::now
  stamp::write "${KIT_STAMPS}" "rank ${RANK} ${KIT_BEGUN} ${KIT_ENTERED} ${KIT_NOW}"
}

# rank::stamp_end - the last line: which rank, its code, its number on the node, and when.
rank::stamp_end() {
  [[ -n "${KIT_STAMPS:-}" ]] || return 0
  stamp::now
  stamp::write "${KIT_STAMPS}" "ended ${RANK} ${kit_code} ${LOCAL_RANK} ${KIT_NOW}"
}

# rank::start_and_pass_signals_on PROGRAM... - Slurm signals the first process of a task alone, which is this shell. Sets
# kit_stopped and kit_code.
rank::start_and_pass_signals_on() {
  local kit_number kit_answer kit_passed=''
  set -m # a group of its own: without, bash would have the program ignore SIGINT
  (rank::become "$@") &
  local -r kit_program=$!
  set +m
  rank::tell "${kit_program}"
  for kit_number in TERM INT HUP; do
    # shellcheck disable=SC2064  # the number is meant now, not when the signal comes
    trap "kit_stopped=1 kit_passed=1; kill -${kit_number} ${kit_program} 2>/dev/null || true" "${kit_number}"
  done
  for kit_number in USR1 USR2; do
    # shellcheck disable=SC2064  # likewise
    trap "kit_passed=1; kill -${kit_number} ${kit_program} 2>/dev/null || true" "${kit_number}"
  done
  {
    wait "${kit_program}" || kit_code=$?
    while [[ -n "${kit_passed}" ]]; do # it was the signal that ended the waiting
      kit_passed='' kit_answer=0
      wait "${kit_program}" || kit_answer=$?
      ((kit_answer == 127)) || kit_code="${kit_answer}" # 127: the program's end was known already
    done
  } 2>/dev/null # of a signal that killed the program, bash would write a line of its own
}

# rank::ask_for_checkpoint - reads the program's process id, and sends it SIGUSR1 when the batch part wants a checkpoint, as a
# file says. It looks every other second, without starting a process, until the rank closes its input.
rank::ask_for_checkpoint() {
  trap '' TERM INT HUP USR1 USR2
  local kit_program kit_answer
  read -r kit_program || return 0
  while :; do
    kit_answer=0
    read -r -t 2 _ || kit_answer=$?
    ((kit_answer > 128)) || return 0
    [[ -e "${KIT_CHECKPOINT_FILE}" ]] || continue
    kill -USR1 "${kit_program}" 2>/dev/null || true
    return 0
  done
}

# sed -u would read byte by byte; stdbuf, where there is one, makes only its output go line by line.
rank::prefix() {
  local -a kit_sed=(sed -u)
  ! command -v stdbuf >/dev/null || kit_sed=(stdbuf -oL sed)
  exec "${kit_sed[@]}" "s/^/$1/"
}
