# events.sh - what happens in a run, as data: a JSON object a line, written where it happens, without a fork, and never a reason
# to fail. A node's lines are in log/JOBID/events/NODE.jsonl, those of the batch script in batch.jsonl. Names here begin with kit_,
# since `local` hides a variable of the job that has the same name.

KIT_ATTEMPT="${KIT_ATTEMPT:-1}" # of the job, or of its ranks alone; nodes are told

# event::name_job - sets KIT_ID, the name of the job's logs; that of an array's task is Slurm's usual one.
event::name_job() {
  KIT_ID="${SLURM_JOB_ID}"
  [[ -z "${SLURM_ARRAY_JOB_ID:-}" ]] || KIT_ID="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
}

# event::begin - names the job's logs and events, on its first node.
event::begin() {
  event::name_job
  KIT_LOG_DIR="${KIT_RUN_DIR}/log/${KIT_ID}"
  local kit_umask
  kit_umask="$(umask)"
  [[ -z "${KIT_SHARE:-}" ]] || umask 027 # for these folders, as for log/
  mkdir -p -- "${KIT_LOG_DIR}/events" 2>/dev/null || mkdir -p -- "${KIT_LOG_DIR}" ||
    kit::die "cannot make ${KIT_LOG_DIR}" "see the line above; free space and files there: df -h, df -i, quota -s; then start it again: $(kit::start_again)"
  KIT_EVENTS="${KIT_LOG_DIR}/events/batch.jsonl"
  # Slurm counts how often it has started the job; in between, all ranks may start again: again.sh. In an allocation of the user's own, by
  # salloc or another batch script, this one may run several times.
  local -i attempt="${SLURM_RESTART_COUNT:-0}+1" begun=0
  if [[ -f "${KIT_EVENTS}" ]]; then
    attempt+="$(grep -c '"event": "restarting"' -- "${KIT_EVENTS}" 2>/dev/null || true)"
    begun="$(grep -c '"event": "start"' -- "${KIT_EVENTS}" 2>/dev/null || true)"
  fi
  KIT_BY_HAND='' # whether a person has started it again
  ((attempt > begun)) || attempt=$((begun + 1)) KIT_BY_HAND=yes
  [[ -z "${KIT_IS_AGAIN:-}" ]] || ((attempt > KIT_ATTEMPT)) || attempt="${KIT_ATTEMPT}+1" # a full disk took no note of the one before
  KIT_ATTEMPT="${attempt}" KIT_ATTEMPT_DIR="${KIT_LOG_DIR}"
  # A later attempt's logs have a folder of their own. Where none can be made, they stand behind those of the first one.
  ((attempt == 1)) || ! mkdir -p -- "${KIT_LOG_DIR}/attempt${attempt}" 2>/dev/null || KIT_ATTEMPT_DIR+="/attempt${attempt}"
  [[ -z "${KIT_SHARE:-}" ]] || share::create_events
  umask "${kit_umask}"
  export KIT_ATTEMPT KIT_ATTEMPT_DIR
}

# event::now - sets KIT_NOW: seconds since 1970, by this machine's clock.
event::now() {
  printf -v KIT_NOW '%(%s)T' -1
  KIT_NOW="${EPOCHREALTIME:-${KIT_NOW}}" # bash before 5.0 has whole seconds alone
  KIT_NOW="${KIT_NOW/[!0-9]/.}"          # the locale may have put a comma
}

# event::note NAME [node NODE] [KEY VALUE]... - appends it to KIT_EVENTS in one write, since ranks share a file. Where the disk is
# full or the folder gone, the run goes on without.
event::note() {
  [[ -n "${KIT_EVENTS:-}" ]] || return 0 # by hand, or beside the ranks
  # Nobody may ever read from a FIFO of that name. Another rank may make the file between the two questions: so they are in this order.
  [[ ! -e "${KIT_EVENTS}" || -f "${KIT_EVENTS}" ]] || return 0
  event::line "$@"
  { printf '%s\n' "${KIT_LINE}" >>"${KIT_EVENTS}"; } 2>/dev/null || true
}

# event::line NAME [node NODE] [KEY VALUE]... - sets KIT_LINE: the time, the attempt, the event and its node first, always.
event::line() {
  local kit_event="$1"
  shift
  [[ "${1:-}" == node ]] || set -- node "${SLURMD_NODENAME:-${HOSTNAME}}" "$@"
  event::now
  KIT_LINE="{\"t\": ${KIT_NOW}, \"attempt\": ${KIT_ATTEMPT}, \"event\": \"${kit_event}\""
  while (($#)); do
    event::value "$1" "$2" 2>/dev/null # where this machine lacks the user's locale, bash says so at each return from LC_ALL=C
    KIT_LINE+=", \"$1\": ${KIT_VALUE}"
    shift 2
  done
  KIT_LINE+='}'
}

# event::value KEY VALUE - sets KIT_VALUE to the JSON of it: a number, true or false as it is, unless the key is that of a text.
# Nothing in a text looks like the end of it: quotes are \\u0022. `printf %b` makes the text of it again.
event::value() {
  local LC_ALL=C kit_rest="$2" kit_char kit_code
  KIT_VALUE="$2"
  case "$1" in node | nodes | job | state | cause | problem | fix | facts | progress | by) ;; *)
    [[ ! "$2" =~ ^(true|false|(0|-?[1-9][0-9]{0,14})([.][0-9]{1,9})?)$ ]] || return 0
    ;;
  esac
  KIT_VALUE="${KIT_VALUE//\\/\\\\}"
  KIT_VALUE="${KIT_VALUE//$'\n'/\\n}"
  while [[ "${kit_rest}" =~ [[:cntrl:]\"] ]]; do
    kit_char="${BASH_REMATCH[0]}" kit_rest="${kit_rest//"${BASH_REMATCH[0]}"/}"
    printf -v kit_code '\\u%04x' "'${kit_char}"
    KIT_VALUE="${KIT_VALUE//"${kit_char}"/"${kit_code}"}"
  done
  KIT_VALUE="\"${KIT_VALUE}\""
}

# event::of PATTERN [FILE] - prints such events of this attempt, of all nodes where no file is named. With the folder's name before
# each, the files would be too long for a command.
event::of() (
  cd -- "${KIT_EVENTS%/*}" 2>/dev/null || return 0
  # shellcheck disable=SC2086  # the pattern is to become names
  event::regular ${2:-*.jsonl}
  ((${#KIT_FILES[@]} == 0)) || grep -hE "\"attempt\": ${KIT_ATTEMPT}, \"event\": \"($1)\".*}\$" "${KIT_FILES[@]}" 2>/dev/null || true
)

# event::regular FILE... - sets KIT_FILES to the regular ones: to read a FIFO or a device that a program made there may never end.
event::regular() {
  local kit_file
  KIT_FILES=()
  for kit_file in "$@"; do [[ ! -f "${kit_file}" ]] || KIT_FILES+=("${kit_file}"); done
}
