# group_signals.sh - for torchrun, which signals the whole group of a rank: the program acts on it, and the shell of the rank
# stays to see its end. rank::run is in rank.sh.

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/rank.sh"

rank::start() {
  trap 'kit_stopped=true' TERM INT HUP
  trap : USR1 USR2
  # Its id first: a subshell becomes the program. Of a signal that kills it, this shell would write a line of its own.
  {
    (
      exec 2>&1
      rank::tell "${BASHPID}"
      rank::become "$@"
    ) || kit_code=$?
  } 2>/dev/null
}
