# restart.sh - with `max_restarts: N`: when a rank has failed, all ranks start again on the job's nodes, in the containers that
# are there, at most N times. A program that fails twice in a row at the same place, soon after its start, fails the third time,
# too: then the job ends with its code. See docs/restarts.md.
# only: KIT_MAX_RESTARTS
# only: KIT_ELASTIC=

source "${KIT_RUN_DIR}/lib/again.sh"

# The arguments of `run_script.sh again`, of which a first start has none.
KIT_RESTARTS="${KIT_RESTARTS:-0}" KIT_PLACE="${KIT_PLACE:-}"
KIT_SOON_S="${KIT_SOON_S:-600}" # what ends later than this after the ranks' start did not end at its start

# restart::consider CODE RANK NODE [WHAT] - returns where the job is to end with this code. Else this script begins anew, in its own
# place. NODE is to blame, where that is known; WHAT has happened where no rank has failed.
restart::consider() {
  local place='' why=''
  [[ -z "${KIT_SIGNAL}" && "${KIT_REQUEST:-}" != stop ]] || return 0 # somebody wants the job to end
  # Slurm has told it already that the time limit is near, and does so once.
  [[ -z "${KIT_NEAR_END:-}" || -n "${KIT_LOOPBACK:-}" ]] || preempt::go_on "a rank has failed near the time limit"
  ((${KIT_PROGRESS_AT:-${SECONDS}} - ${KIT_RANKS_BEGUN_S:-${SECONDS}} > KIT_SOON_S)) || place="$(restart::place "$1" "$2" "${4:-}")"
  if ((KIT_RESTARTS >= KIT_MAX_RESTARTS)); then
    why="\`max_restarts: ${KIT_MAX_RESTARTS}\` allows no more"
  elif [[ -n "${place}" && "${place}" == "${KIT_PLACE}" ]]; then
    why="two attempts in a row ended at the same place soon after their start: ${place}"
  fi
  if [[ -n "${why}" ]]; then
    event::note not_restarted problem "${why}"
    kit::say "not started again: ${why}"
    return
  fi
  kit::say "starting all ranks again: restart $((KIT_RESTARTS + 1)) of ${KIT_MAX_RESTARTS}"
  again::start "$1" "$((KIT_RESTARTS + 1))" "${place}" "$3"
}

# restart::place CODE RANK [WHAT] - prints where the rank ended: its exception, with the file and line that raised it, or the last
# line that it said, without the numbers; else which rank it was. And how far the program was, where it says so.
restart::place() {
  local said='' progress exception line
  progress="$(again::progress)"
  [[ "${progress}" != - ]] || progress=''
  if [[ -n "${3:-}" ]]; then
    printf '%s%s' "$3" "${progress:+, progress: ${progress}}"
    return
  fi
  said="$(ending::said "rank$2.out")" || true
  exception="$(grep -aoE '^([A-Za-z_][A-Za-z0-9_]*[.])*[A-Za-z_][A-Za-z0-9_]*(Error|Exception|Exit|Interrupt)\b' < <(printf '%s\n' "${said}") | tail -n 1)" || true
  line="$(grep -aoE '^ *File "[^"]+", line [0-9]+' < <(printf '%s\n' "${said}") | tail -n 1)" || true
  if [[ -n "${exception}" ]]; then
    said="${exception}${line:+ at ${line#"${line%%[! ]*}"}}"
  else
    said="$(sed '/^kit: /d; /^[[:space:]]*$/d' < <(printf '%s\n' "${said}") | tail -n 1 | tr -d '0-9' | cut -b 1-200)"
    (($1 <= 128)) && [[ -n "${said}" ]] || said="${2:+rank $2}"
  fi
  printf '%sexit code %d%s' "${said:+${said}, }" "$1" "${progress:+, progress: ${progress}}"
}
