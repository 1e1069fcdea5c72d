# signals.sh - for launchers whose ranks are Slurm's tasks: Slurm signals the first process of a task alone, which is the shell
# of the rank. It hands the signal on to the program. rank::run is in rank.sh.

source "${KIT_RUN_DIR}/lib/rank.sh"

rank::start() {
  local kit_number kit_answer kit_group kit_passed='' kit_early=''
  # shellcheck disable=SC2064  # the number is meant now, not when the signal comes
  for kit_number in TERM INT HUP USR1 USR2; do trap "kit_early+=' ${kit_number}'" "${kit_number}"; done
  set -m # a group of its own: without, bash would have the program ignore SIGINT
  (rank::become "$@") &
  local -r kit_program=$!
  set +m
  rank::tell "${kit_program}"
  # bash would not hand a signal on to the program that a script has started.
  kit_group="${kit_program}"
  [[ ! -e "${KIT_RUN_DIR}/script.sh" ]] || kit_group="-${kit_program}"
  for kit_number in TERM INT HUP; do
    # shellcheck disable=SC2064  # the number is meant now, not when the signal comes
    trap "kit_stopped=true kit_passed=1; kill -${kit_number} ${kit_group} 2>/dev/null || true" "${kit_number}"
  done
  for kit_number in USR1 USR2; do
    # shellcheck disable=SC2064  # likewise
    trap "kit_passed=1; kill -${kit_number} ${kit_group} 2>/dev/null || true" "${kit_number}"
  done
  for kit_number in ${kit_early}; do kill -"${kit_number}" "${BASHPID}"; done # which came before there was a program
  {
    wait "${kit_program}" || kit_code=$?
    while [[ -n "${kit_passed}" ]]; do # it was the signal that ended the waiting
      kit_passed='' kit_answer=0
      wait "${kit_program}" || kit_answer=$?
      ((kit_answer == 127)) || kit_code="${kit_answer}" # 127: the program's end was known already
    done
  } 2>/dev/null # of a signal that killed the program, bash would write a line of its own
}
