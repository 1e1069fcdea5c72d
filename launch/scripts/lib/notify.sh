# notify.sh - tells people that the job has started, stands still or has ended: by a web hook, by a command of theirs, or by both, from the first
# node. Whatever becomes of it, the job goes on, and ends with its own code. See docs/notify.md.
# only: KIT_NOTIFY

unset KIT_HOOK         # a variable that the submitting shell has exported would stay so
readonly KIT_TELL_S=10 # for the web hook to answer, and for the command to end

# notify::begin - at the job's start. The hook's address is read now, since its file may be gone at the end: into a variable that
# only this shell has. It is never an argument, and in no environment; nor does a trace of these scripts show it.
notify::begin() {
  local -
  set +avx
  local kit_pair
  KIT_HOOK=''
  if [[ -n "${KIT_NOTIFY_WEBHOOK}" ]]; then
    while IFS='' LC_ALL=C read -r -d '' kit_pair; do
      [[ "${kit_pair}" != "${KIT_NOTIFY_WEBHOOK}="* ]] || KIT_HOOK="${kit_pair#*=}"
    done <"${KIT_SECRETS_FILE:-/dev/null}" 2>/dev/null # of a locale that is not here, bash would warn each time
  fi
  local attempt=''
  ((KIT_ATTEMPT == 1)) || attempt=", attempt ${KIT_ATTEMPT}"
  # Beside the job, which is not to wait for it.
  notify::tell start RUNNING '' '' "started on ${SLURM_JOB_NODELIST}${attempt}" &
}

# notify::stall WHAT - once, until there is progress again. The batch script waits for the message, since it may end the job next.
notify::stall() { (notify::tell stall STALLED '' "$1" "stands still: $1. See: kit hang ${KIT_ID}") || true; }

# notify::end [CODE] - once, when the job ends for good; without a code where its ranks are still being ended. The cause is
# the first that the batch script noted.
notify::end() {
  [[ -z "${KIT_GOES_ON}" && -n "${KIT_HOOK+begun}" ]] || return 0
  local state="${KIT_OUTCOME:-FAILED}" noted cause='' text
  [[ "${state}" != @(COMPLETING|RUNNING) ]] || state="$(notify::ended_by)"
  noted="$(event::of 'blamed|node_refused|node_silent|nodes_absent' batch.jsonl | head -n 1)"
  [[ ! "${noted}" =~ \"problem\":\ \"([^\"]*)\" ]] || printf -v cause '%b' "${BASH_REMATCH[1]}"
  [[ -z "${cause}" || ! "${noted}" =~ \"node\":\ \"([^\"]+)\" ]] || cause="${BASH_REMATCH[1]}: ${cause}"
  text="${state} after $(notify::duration "$(notify::elapsed)")"
  [[ "${1:-0}" == 0 ]] || text+=", exit code $1"
  [[ "${state}" == COMPLETED ]] || text+="${cause:+: ${cause}}. See: kit why ${KIT_ID}"
  (notify::tell end "${state}" "${1:-}" "${cause}" "${text}") || true
  unset KIT_HOOK
}

# notify::elapsed - prints the seconds since the job began, which may be before this script did: see again.sh.
notify::elapsed() {
  event::now
  printf '%d' "$((${SLURM_JOB_START_TIME:-0} > 0 ? ${KIT_NOW%.*} - SLURM_JOB_START_TIME : SECONDS))"
}

# notify::duration SECONDS
notify::duration() {
  if (($1 < 60)); then
    printf '%d s' "$1"
  elif (($1 < 3600)); then
    printf '%d min' "$(($1 / 60))"
  else
    printf '%d h %02d min' "$(($1 / 3600))" "$(($1 / 60 % 60))"
  fi
}

# notify::ended_by - while Slurm ends a job it says COMPLETING of all; its daemon's line in the job's log says more.
notify::ended_by() {
  local line
  line="$(tail -c "+$((KIT_LOG_FROM + 1))" -- "${KIT_RUN_DIR}/log/slurm-${KIT_ID}.out" 2>/dev/null | grep -aF ' CANCELLED AT ' | tail -n 1)" || true
  case "${line}" in
    *'TIME LIMIT'*) printf TIMEOUT ;;
    *PREEMPTION*) printf PREEMPTED ;;
    *'NODE FAILURE'*) printf NODE_FAIL ;;
    ?*) printf CANCELLED ;;
    *) printf ENDED ;;
  esac
}

# notify::tell EVENT STATE CODE CAUSE TEXT - in a subshell.
notify::tell() {
  set +evx
  [[ " ${KIT_NOTIFY} " == *" $1 "* ]] || return 0
  local -r text="kit: ${KIT_NAME} (${KIT_ID}) $5"
  local said
  if [[ -n "${KIT_HOOK}" ]]; then
    said="$(notify::post "${text}" 2>&1)" ||
      kit::say "the web hook was not told of the job's $1: ${said//"${KIT_HOOK}"/(its address)}"
  fi
  ((${#KIT_NOTIFY_COMMAND[@]} > 0)) || return 0
  cd -- "${KIT_WORKDIR}" 2>/dev/null || true
  export -n "${!KIT_@}" # it has those alone that docs/notify.md names
  export KIT_RUN_DIR
  [[ -z "${KIT_SHARE:-}" ]] || umask "${KIT_UMASK}"
  KIT_RUN="${KIT_ID}" KIT_NAME="${KIT_NAME}" KIT_STATE="$2" KIT_EXIT_CODE="$3" KIT_CAUSE="$4" \
    timeout --kill-after=1 "${KIT_TELL_S}" "${KIT_NOTIFY_COMMAND[@]}" < <(printf '%s\n' "${text}") >&2 ||
    kit::say "the command of \`notify\` ended with code $?: it was to tell of the job's $1 (124: it took more than ${KIT_TELL_S} s)"
}

# notify::post TEXT - the message as Slack, Mattermost and others take it, in which <, > and & stand for something else.
notify::post() {
  local text="$1" pair
  text="${text//&/"&amp;"}"
  text="${text//</"&lt;"}"
  text="${text//>/"&gt;"}"
  event::value problem "${text}"
  command -v curl >/dev/null || {
    printf 'there is no curl on this node'
    return 1
  }
  # Where the nodes need a proxy, the job's variables name it.
  for pair in "${KIT_ENV[@]}"; do [[ "${pair%%=*}" != *_@(proxy|PROXY) ]] || export "${pair?}"; done
  # Through pipes, since a list of processes shows the arguments.
  curl --disable --silent --show-error --fail --output /dev/null --max-time "${KIT_TELL_S}" \
    --header 'Content-Type: application/json' --data-binary @<(printf '{"text": %s}' "${KIT_VALUE}") \
    --config <(printf 'url = "%s"\n' "${KIT_HOOK}")
}
