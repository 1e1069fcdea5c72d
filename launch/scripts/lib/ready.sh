# ready.sh - checks and containers on every node, in a step of its own. The ranks start when all nodes are ready, since a
# rendezvous gives the others little time, and would not say which is late.

# ready::wait_for_nodes - on the first node: has all nodes prepared.
ready::wait_for_nodes() {
  local number=''
  ready::ask prepare node_ready
  # srun's 0 does not say that it started everywhere. A full disk cuts the file short.
  ((${number:-0} >= NNODES)) || [[ -z "$(ready::late)" ]] ||
    ending::explain_absence run-directory-missing-on-a-node "$(ready::late | kit::first_ten)" 'no answer to the preparing step'
  event::note nodes_ready
  [[ -z "${KIT_HEALTH:-}" ]] || health::warn
}

# ready::ask VERB EVENT [OTHER] - on the first node: has run_script.sh do VERB on all nodes, each of which answers with one of these
# events, and ends the job where one does not in time. Sets the caller's `number` to how many answered with EVENT, or leaves it empty if the count was lost.
ready::ask() {
  local pipe counted answers rc=0
  local KIT_READY="${KIT_EVENTS%/*}/ready.jsonl"
  [[ -f "${KIT_READY}" || ! -e "${KIT_READY}" ]] || KIT_READY=/dev/null
  KIT_AWAITED="$2${3:+|$3}"
  KIT_READY_BEFORE="$(event::of "${KIT_AWAITED}" ready.jsonl | wc -l)" # of this attempt: a runtime may have all nodes prepared twice
  # They answer over srun's own connection. bash reads a pipe by the character, so the answers of 10,000 nodes go past it: tee keeps
  # them, or goes on without where the disk is full, and ends when srun has. A second pipe, which those behind it alone hold open,
  # gets their number at their end.
  exec {pipe}<> <(:)
  exec {counted}<"/proc/self/fd/${pipe}"
  exec {answers}> >(
    trap '' TERM INT HUP USR1 USR2 # it ends with srun, not with a signal to the job
    exec 1>&"${pipe}" 2>/dev/null
    tee -a -- "${KIT_READY}" | grep -c "\"event\": \"$2\".*}\$"
  )
  exec {pipe}>&-
  # srun is a job, since bash 4.4 waits only for the process substitution that it started last.
  "${KIT_SRUN_EACH[@]}" bash "${KIT_RUN_DIR}/run_script.sh" "$1" >&"${answers}" {answers}>&- {counted}<&- &
  local -ri srun_pid=$!
  local -i begin_s=SECONDS looked_s=SECONDS report_s=30
  exec {answers}>&-
  while ready::is_waiting; do ready::report_late; done
  exec {counted}<&-
  wait "${srun_pid}" || rc=$?
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "${rc}"
  ((rc == 0)) || ending::explain_failure "${rc}"
}

# ready::is_waiting - whether srun still runs, after a second; else the caller's `number` has the answers' number.
ready::is_waiting() {
  local part rc=0
  ! preempt::asked || exit 1
  read -r -t 1 -u "${counted}" part || rc=$?
  number+="${part}" # where the second is over, it may be half of it
  ((rc > 128))
}

# ready::report_late - ends the job when the caller's time is over; until then it says now and then who is late.
ready::report_late() {
  ((SECONDS - looked_s <= 5)) || begin_s+=SECONDS-looked_s # the job was suspended meanwhile
  looked_s=SECONDS
  if ((SECONDS - begin_s >= KIT_READY_TIMEOUT_S)); then
    kill -TERM "${srun_pid}" 2>/dev/null || true
    kit::die "not ready after ${KIT_READY_TIMEOUT_S} s: $(ready::late | kit::first_ten)" \
      "what they were doing: ${KIT_ATTEMPT_DIR}/NODE.out; without them: $(kit::start_again NODE); with more time: ready_timeout_s" node-not-ready
  elif ((SECONDS - begin_s >= report_s)); then
    kit::say "waiting since ${report_s} s for $(ready::late | wc -l) of ${NNODES} nodes: $(ready::late | kit::first_ten)"
    report_s+=report_s # 30 s, 60 s, 2 minutes ...
  fi
  # The answers so far came before this moment.
  event::note heard bytes "$(stat -c %s -- "${KIT_READY}" 2>/dev/null || printf 0)"
}

# ready::late - prints the nodes that have not answered.
ready::late() {
  job::hosts | grep -vxFf <(event::of "${KIT_AWAITED}" ready.jsonl | tail -n "+$((KIT_READY_BEFORE + 1))" | sed -n 's/.*"event": "[a-z_]*", "node": "\([^"]*\)".*}$/\1/p') || true
}
