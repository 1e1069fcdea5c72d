# ready.sh - checks and containers on every node, in a step of its own. The ranks start when all nodes are ready, since a
# rendezvous gives the others little time, and would not say which is late.

# ready::wait_for_nodes - on the first node: has all nodes prepared, and ends the job where one is not ready in time.
ready::wait_for_nodes() {
  local pipe counted answers number='' rc=0
  local KIT_READY="${KIT_EVENTS%/*}/ready.jsonl"
  [[ -f "${KIT_READY}" || ! -e "${KIT_READY}" ]] || KIT_READY=/dev/null
  KIT_READY_BEFORE="$(event::of node_ready ready.jsonl | wc -l)" # of this attempt: a runtime may have all nodes prepared twice
  # Each node answers with an event, over srun's own connection. bash reads a pipe by the character, so the
  # answers of 10,000 nodes go past it: tee keeps them, or goes on without where the disk is full, and ends when srun has.
  # A second pipe, which those behind it alone hold open, gets their number at their end.
  exec {pipe}<> <(:)
  exec {counted}<"/proc/self/fd/${pipe}"
  exec {answers}> >(
    trap '' TERM INT HUP USR1 USR2 # it ends with srun, not with a signal to the job
    exec 1>&"${pipe}" 2>/dev/null
    tee -a -- "${KIT_READY}" | grep -c '"event": "node_ready".*}$'
  )
  exec {pipe}>&-
  # srun is a job, since bash 4.4 waits only for the process substitution that it started last.
  "${KIT_SRUN_EACH[@]}" bash "${KIT_RUN_DIR}/run_script.sh" prepare >&"${answers}" {answers}>&- {counted}<&- &
  local -ri srun_pid=$!
  local -i begin_s=SECONDS looked_s=SECONDS
  local -i report_s=30
  exec {answers}>&-
  while ready::is_waiting; do ready::report_late; done
  exec {counted}<&-
  wait "${srun_pid}" || rc=$?
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "${rc}"
  ((rc == 0)) || ending::explain_failure "${rc}"
  # srun's 0 does not say that it started everywhere. A full disk cuts the file short, and a busy machine may lose the number.
  ((${number:-0} >= NNODES)) || [[ -z "$(ready::late)" ]] ||
    ending::explain_absence run-directory-missing-on-a-node "$(ready::late | kit::first_ten)" 'no answer to the preparing step'
  event::note nodes_ready
  [[ -z "${KIT_HEALTH:-}" ]] || health::warn
}

# ready::is_waiting - whether srun still runs, after a second; else the caller's `number` has the answers' number.
ready::is_waiting() {
  local rc=0
  ! preempt::asked || exit 1
  read -r -t 1 -u "${counted}" number || rc=$?
  ((rc > 128))
}

# ready::report_late - ends the job when the caller's time is over; until then it says now and then who is late.
ready::report_late() {
  if ready::is_over; then
    ready::give_up "${srun_pid}" "$(ready::late | kit::first_ten)"
  elif ((SECONDS - begin_s >= report_s)); then
    kit::say "waiting since ${report_s} s for $(ready::late | wc -l) of ${NNODES} nodes: $(ready::late | kit::first_ten)"
    report_s+=report_s # 30 s, 60 s, 2 minutes ...
  fi
  # The answers so far came before this moment.
  event::note heard bytes "$(stat -c %s -- "${KIT_READY}" 2>/dev/null || printf 0)"
}

# ready::is_over - whether the nodes have had their time, by the caller's begin_s and looked_s; to be asked each few seconds.
ready::is_over() {
  ((SECONDS - looked_s <= 5)) || begin_s+=SECONDS-looked_s # the job was suspended meanwhile
  looked_s=SECONDS
  ((SECONDS - begin_s >= KIT_READY_TIMEOUT_S))
}

# ready::give_up SRUN_PID NODES - ends the job since these are not ready in time.
ready::give_up() {
  kill -TERM "$1" 2>/dev/null || true
  kit::die "not ready after ${KIT_READY_TIMEOUT_S} s: $2" \
    "what they were doing: ${KIT_ATTEMPT_DIR}/NODE.out; without them: $(kit::start_again NODE); with more time: ready_timeout_s" node-not-ready
}

# ready::late - prints the nodes that have not answered.
ready::late() {
  job::hosts | grep -vxFf <(event::of node_ready ready.jsonl | tail -n "+$((KIT_READY_BEFORE + 1))" | sed -n 's/.*"node_ready", "node": "\([^"]*\)".*}$/\1/p') || true
}
