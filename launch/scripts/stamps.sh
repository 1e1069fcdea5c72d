# shellcheck shell=bash
# stamps.sh - moments of a run's start, for `kit timeline`: noted without a fork, and never a reason to fail.

# stamp::now - sets KIT_NOW: seconds since 1970, by this machine's clock.
stamp::now() {
  KIT_NOW="${EPOCHREALTIME:-}"
  if [[ -n "${KIT_NOW}" ]]; then
    KIT_NOW="${KIT_NOW/[!0-9]/.}" # the locale may have put a comma
  else
    printf -v KIT_NOW '%(%s)T' -1 # bash before 5.0
  fi
}

# stamp::write FILE LINE... - appends them; where the disk is full or the folder gone, the run goes on without.
stamp::write() { { printf '%s\n' "${@:2}" >>"$1"; } 2>/dev/null || true; }
