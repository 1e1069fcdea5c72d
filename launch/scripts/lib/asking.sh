# shellcheck shell=bash
# asking.sh - how a rank's program learns that a checkpoint is wanted.
# only: checkpoint

# rank::ask_for_checkpoint - reads the program's process id, and sends it SIGUSR1 when the first node wants a checkpoint, as a
# file says. It looks every other second, without starting a process, until the rank closes its input.
rank::ask_for_checkpoint() {
  trap '' TERM INT HUP USR1 USR2
  local kit_program kit_answer
  local -a kit_facts
  read -r kit_program || return 0
  while :; do
    kit_answer=0
    read -r -t 2 _ || kit_answer=$?
    ((kit_answer > 128)) || return 0
    [[ -e "${KIT_CHECKPOINT_FILE}" ]] || continue
    if [[ -e "${KIT_RUN_DIR}/script.sh" ]]; then # bash would not hand it on to the program that a script has started
      read -ra kit_facts <"/proc/${kit_program}/stat" && kit_program="-${kit_facts[4]}"
    fi
    kill -USR1 "${kit_program}" 2>/dev/null || true
    return 0
  done
}
