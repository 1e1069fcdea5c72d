# rank.sh - starts a rank with a log of its own, and notes its exit code, which torchrun would turn into 1, and of which srun
# would report the largest. signals.sh or group_signals.sh defines rank::start, which sets kit_stopped and kit_code.

[[ ! -e "${KIT_RUN_DIR}/lib/peers.sh" ]] || source "${KIT_RUN_DIR}/lib/peers.sh"

# rank::run PROGRAM... - RANK and LOCAL_RANK are set; KIT_LOGGED is "node" where the program is its node's only one. Ends this
# shell with the program's exit code.
rank::run() {
  local -r kit_log="${KIT_ATTEMPT_DIR:-${KIT_LOG_DIR}}/rank${RANK}.out" kit_path="${PATH}"
  PATH="${KIT_PATH:-${PATH}}"
  exec {kit_asking}>/dev/null {kit_watching}>/dev/null
  if [[ -n "${KIT_CHECKPOINT_FILE:-}" ]]; then
    source "${KIT_RUN_DIR}/lib/asking.sh"
    exec {kit_asking}> >(asking::for_checkpoint)
  fi
  local kit_has_peers='' kit_before=''
  kit::if_there peers::begin
  # Both streams in one file, in order; and line by line, so that ranks do not cut into each other, to the node's log.
  exec {kit_console}>&1 > >(
    trap '' TERM INT HUP USR1 USR2 # it ends with the program's output, not with a signal to the program
    exec {kit_asking}>&- {kit_watching}>&-
    [[ -z "${KIT_SHARE:-}" ]] || umask 027 # the log is for the group
    rank::prefix "[${KIT_LOGGED:-rank}${RANK}] " < <(rank::keep "${kit_log}")
  ) 2>&1
  local -r kit_logger=$!

  # When its task began outside the container, and when it was inside. The program may note its first step: docs/timeline.md.
  event::note rank_started rank "${RANK}" begun "${KIT_BEGUN:-0}" entered "${KIT_ENTERED:-0}"
  local kit_stopped='' kit_code=0
  local -i kit_killed kit_killed_before
  rank::count_killed
  kit_killed_before=kit_killed
  rank::start "$@"
  exec >&"${kit_console}" 2>&1 # the last lines go through while the end is noted
  [[ -z "${KIT_CHECKPOINT_FILE:-}" ]] || ! asking::has_stopped || kit_code=75
  if ((kit_code == 137)) && [[ -z "${kit_stopped}" ]]; then
    rank::count_killed
    ((kit_killed == kit_killed_before)) || event::note out_of_memory rank "${RANK}" problem "while rank ${RANK} ran, the kernel killed a process since memory had run out"
  fi
  # A rank that was told to stop did not cause the failure; unless what it said last is an exception: see blame.awk.
  event::note rank_ended rank "${RANK}" local_rank "${LOCAL_RANK}" code "${kit_code}" stopped "${kit_stopped:-false}"
  exec {kit_asking}>&- {kit_watching}>&-
  rank::flush
  ((kit_code != 0)) || [[ -z "${kit_has_peers}" ]] || peers::judge "$@"
  # The ranks that miss this one are to say so before they are ended for it: then the one that says nothing is known. A rank that
  # was killed, or that crashed (SIGBUS, SIGSEGV), has not itself missed another.
  if ((kit_code != 0 && ${WORLD_SIZE:-1} > 1)) && [[ -z "${kit_stopped}" && "${kit_code}" != 13[579] ]]; then sleep 1; fi
  exit "${kit_code}"
}

# rank::count_killed - sets kit_killed to the number of processes that the kernel has killed because memory had run out. It counts
# those of this job's control group if the files of the group are readable, and otherwise those of the node, which others may use, too.
rank::count_killed() {
  local kit_name kit_group kit_file kit_counter=/proc/vmstat kit_line
  local -a kit_lines=()
  kit_killed=0
  while IFS=: read -r _ kit_name kit_group; do
    case "${kit_name}" in
      '') kit_file="/sys/fs/cgroup${kit_group}/memory.events" ;;
      memory) kit_file="/sys/fs/cgroup/memory${kit_group}/memory.oom_control" ;; # the kernel's older kind of groups
      *) continue ;;
    esac
    [[ ! -r "${kit_file}" ]] || kit_counter="${kit_file}"
  done 2>/dev/null </proc/self/cgroup || true
  mapfile -t kit_lines 2>/dev/null <"${kit_counter}" || true # at once: it changes between two lines
  for kit_line in "${kit_lines[@]}"; do [[ "${kit_line}" != 'oom_kill '* ]] || kit_killed="${kit_line#* }"; done
}

# rank::add_children PROCESS - adds those that it has started to the caller's kit_processes.
rank::add_children() {
  local -a kit_children
  local kit_file
  for kit_file in "/proc/$1"/task/*/children; do
    kit_children=()
    { read -ra kit_children <"${kit_file}"; } 2>/dev/null || true # it has no newline, or is gone
    kit_processes+=("${kit_children[@]}")
  done
}

# rank::become PROGRAM... - the program in this shell's place, with all that the job says.
rank::become() {
  if [[ -n "${KIT_SECRETS:-}" ]]; then
    source "${KIT_RUN_DIR}/lib/secrets.sh"
    secrets::take
  fi
  PATH="${kit_path}"
  export -n SHELLOPTS BASHOPTS # exported in the user's shell, they would give a program in bash the options of this one
  exec {kit_asking}>&- {kit_watching}>&- "$@"
}

# rank::tell PROCESS - tells those that wait for it which process the program is.
rank::tell() {
  printf '%d\n' "$1" >&"${kit_asking}"
  printf '%d\n' "$1" >&"${kit_watching}"
}

# rank::flush - lets the last lines through; but a process that the program left behind may hold its output open for ever.
rank::flush() { kit::await_end "${kit_logger}" 2; }

# rank::keep LOG - passes its input on, and adds it to the log. GNU's tee gives a file up after one failed write, and the disk may take
# more a moment later: then another tee goes on. What the log lacks is in the node's. That of busybox has no such option, and goes on by
# itself.
rank::keep() {
  tee --output-error=exit </dev/null 2>/dev/null || exec tee -a -- "$1"
  until tee -a --output-error=exit -- "$1" || (($? > 128)); do
    exec 2>/dev/null # that it could not write was said
    : >>"$1" || exec cat
  done
}

# sed -u would read byte by byte, and busybox's sed has no -u; stdbuf, where there is one, makes only its output go line by line.
rank::prefix() {
  local -a kit_sed=(sed -u)
  if command -v stdbuf >/dev/null; then
    kit_sed=(stdbuf -oL sed)
  elif ! sed -u p </dev/null >/dev/null 2>&1; then
    exec awk -v kit_prefix="$1" '{ print kit_prefix $0; fflush() }'
  fi
  exec "${kit_sed[@]}" "s/^/$1/"
}
