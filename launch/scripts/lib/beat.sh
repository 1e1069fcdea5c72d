# beat.sh - while the ranks run, a task on each node (pulse.sh) sends the first node a line now and then, over srun's own
# connection: a node that falls silent is dead, frozen or cut off, long before Slurm gives it up. A line is the node's number in
# the step, and with `stall_timeout` 1 where its ranks work, and how much of the CPU that they want they get, in percent.
# only: KIT_LEAST_NODES

source "${KIT_RUN_DIR}/lib/again.sh"
source "${KIT_RUN_DIR}/lib/lost.sh"
source "${KIT_RUN_DIR}/lib/ranks.sh"
[[ -z "${KIT_STALL_S:-}" ]] || source "${KIT_RUN_DIR}/lib/stall.sh"

KIT_BEATS=''   # what srun prints
KIT_HEARD=''   # the beginning of a line
KIT_BEAT_AT=() # when each node was last heard, by its number in the step
KIT_SHARES=()  # how much of the CPU that its ranks want they get, in percent
KIT_ALIVE_AT=0 # when this node next shows that it lives
KIT_ALONE_S=60 # how long a node that hears no other waits before it gives them up
KIT_ALONE=''   # whether it does
KIT_LATE_S=0   # a node that is silent for longer is dead, frozen or cut off, or so busy that nothing runs

# beat::begin - on the first node: starts those tasks. Without `stall_timeout` a node alone needs none, nor does `kit run`.
beat::begin() {
  local -a step
  [[ -n "${KIT_STALL_S:-}" ]] || ((NNODES > 1)) || return 0
  [[ -n "${KIT_STALL_S:-}" || -z "${KIT_LOOPBACK:-}" ]] || return 0
  beat::step beat
  KIT_HEARD=''
  KIT_BEAT_S=$((2 + NNODES / 500)) # the first node reads some hundred lines a second at most
  KIT_LATE_S=$((5 * KIT_BEAT_S))
  KIT_SILENT_S="${KIT_LATE_S}" # after which the job goes on without it
  # A job that would end without the node loses nothing by waiting for it.
  lost::may_go_on || ((KIT_SILENT_S > 60)) || KIT_SILENT_S=60
  # What this srun says of its tasks stays out of the job's log: ending::ask_srun looks there for the first rank to fail, and
  # the words may come late, in the next attempt.
  exec {KIT_BEATS}< <(
    export KIT_BEAT_S KIT_STALL_S="${KIT_STALL_S:-}" KIT_ID KIT_ON_PREEMPT KIT_SECRETS="${KIT_SECRETS:-}" KIT_FIRST="${SLURMD_NODENAME:-}"
    exec "${step[@]}" bash "${KIT_RUN_DIR}/lib/pulse.sh" 2>>"${KIT_LOG_DIR}/.beat"
  )
  KIT_BEAT_PID=$!
  kit::if_there stall::begin
}

# beat::step NAME - sets the caller's `step` to an srun that starts a task on each node beside the ranks, and that a node which is
# gone does not end.
beat::step() {
  step=("${KIT_SRUN_EACH[@]}" --job-name="$1" --overlap --no-kill --kill-on-bad-exit=0) # of two alike srun takes the last
}

# beat::wait SRUN_PID - as `wait`: until the ranks' step has ended, or a signal has come. A lost node or a stall ends the ranks.
beat::wait() {
  local -i looked_s="${SECONDS}" rc=0
  beat::forgive
  while [[ -n "${KIT_BEATS}${KIT_STALL_S:-}" ]] && kill -0 "$1" 2>/dev/null; do
    [[ -z "${KIT_SIGNAL}${KIT_ASKED:-}" ]] || return 143
    beat::listen
    # The clock was set back; a line that was heard meanwhile would seem to be of long ago.
    ((SECONDS >= looked_s)) || { SECONDS="${looked_s}" && beat::forgive; }
    ((SECONDS > looked_s)) || continue
    # A first node that was itself stopped, or whose file system was slow, has heard nobody.
    ((SECONDS - looked_s < KIT_LATE_S / 2)) || beat::forgive "$((SECONDS - looked_s))"
    kit::if_there stall::forgive "$((SECONDS - looked_s - 1))"
    looked_s="${SECONDS}"
    beat::look "$1"
  done
  ranks::wait "$1" || rc=$?
  # Ranks may have failed for want of a node. A first node that was itself stopped cannot tell.
  ((rc == 0 || SECONDS - looked_s >= KIT_LATE_S / 2)) || [[ -n "${KIT_SIGNAL}${KIT_ASKED:-}" ]] || beat::look_for_lost "$1" "${KIT_LATE_S}"
  return "${rc}"
}

# beat::listen - hears the next line, or waits for it a quarter of a second.
beat::listen() {
  local line
  local -i rc=0
  if [[ -z "${KIT_BEATS}" ]]; then # nobody can tell any more whether the ranks work
    sleep 0.25
    KIT_WORKED_AT="${SECONDS}"
    return
  fi
  IFS= read -r -t 0.25 -u "${KIT_BEATS}" line || rc=$?
  KIT_HEARD+="${line}" # it may have been interrupted in the middle of a line, where this machine is busy
  if ((rc == 0)); then
    [[ ! "${KIT_HEARD}" =~ ^([^ ]+)\ ([^ ]+)\ ([^ ]+)$ ]] || beat::hear "${BASH_REMATCH[@]:1}"
    KIT_HEARD=''
  elif ((rc <= 128)); then
    # Where Slurm ends the job, it ends those tasks first; then beat::name_silent still asks which node was not heard.
    ! ending::await_signal 2 || return 0
    [[ -n "${KIT_LOOPBACK:-}" ]] || kit::say "the nodes send no more beats: from now on Slurm alone notices a dead one; log/${KIT_ID}/.beat may say why"
    beat::end
    KIT_BEAT_AT=() KIT_SHARES=()
  fi
}

# beat::hear NUMBER WORKING SHARE - notes what a line says, and passes over a line that srun has cut in two.
beat::hear() {
  [[ "$1" =~ ^(0|[1-9][0-9]{0,5})$ && "$2" == [01] && "$3" =~ ^(0|[1-9][0-9]{0,2})$ ]] && (($1 < NNODES)) || return 0
  KIT_BEAT_AT[$1]="${SECONDS}" KIT_SHARES[$1]="$3"
  (($2 == 0)) || KIT_WORKED_AT="${SECONDS}"
}

# beat::forgive [SECONDS] - takes these off the silence of all nodes, or all of it. Where each look is slow, what is left still tells a dead
# node from the others.
beat::forgive() {
  local number
  local -i heard_s
  for number in "${!KIT_BEAT_AT[@]}"; do
    heard_s=$((KIT_BEAT_AT[number] + ${1:-0}))
    KIT_BEAT_AT[number]=$(($# == 0 || heard_s > SECONDS ? SECONDS : heard_s))
  done
}

# beat::look SRUN_PID - ends the ranks where a node that was there is silent, or where they stand still.
beat::look() {
  beat::look_for_lost "$1" "${KIT_SILENT_S}"
  kit::if_there stall::check "$1"
  # For the others, which end the job where this node is lost: see pulse.sh. Last, since the file system may take its time, which
  # beat::wait forgives before it looks again.
  ((SECONDS < KIT_ALIVE_AT)) || { KIT_ALIVE_AT=$((SECONDS + 10)) && printf '%d\n' "${SECONDS}" >"${KIT_LOG_DIR}/.alive"; } 2>/dev/null || true
}

# beat::look_for_lost SRUN_PID SECONDS - ends the ranks where a node is silent for longer.
beat::look_for_lost() {
  local number
  local -i silent_s="$2"
  local -a hosts=() lost=() late
  [[ -z "${KIT_LOOPBACK:-}" ]] || return 0 # the "nodes" of `kit run` are this machine, which is there; when it is busy, a line may be late
  [[ -n "$(beat::silent "${silent_s}")" ]] || { KIT_ALONE='' && return 0; }
  mapfile -t hosts < <(job::hosts)
  beat::doubt "$1"
  mapfile -t lost < <(beat::silent "${silent_s}")
  ((${#lost[@]} > 0)) || return 0
  # Nodes that died together sent their last lines up to a beat apart, and those are a moment on their way. But a node that is
  # only late is needed where there are no others.
  mapfile -t late < <(beat::silent "$((silent_s - 2 * KIT_BEAT_S))")
  (($(lost::hosts | wc -l) - ${#late[@]} < $(lost::needed))) || lost=("${late[@]}")
  for number in "${!lost[@]}"; do lost[number]="${hosts[lost[number]]}"; done
  lost::handle "$1" "${silent_s}" "${lost[@]}"
}

# beat::doubt SRUN_PID - where this node hears no other at all, its own link may be down for a moment: makes the caller's `silent_s`
# longer, and waits for the others here if the ranks have ended.
beat::doubt() {
  local -ri late_s=$((silent_s - 2 * KIT_BEAT_S))
  beat::hears_no_other "${late_s}" || { KIT_ALONE='' && return 0; }
  ((silent_s >= KIT_ALONE_S)) || silent_s=KIT_ALONE_S
  [[ -n "${KIT_ALONE}" ]] || kit::say "this node hears no other node: its own link may be down; kit waits for them until ${silent_s} s are over"
  KIT_ALONE=yes
  while ! kill -0 "$1" 2>/dev/null && [[ -n "${KIT_BEATS}" && -z "${KIT_SIGNAL}${KIT_ASKED:-}$(beat::silent "${silent_s}")" ]]; do
    beat::hears_no_other "${late_s}" || break
    beat::listen
  done
}

# beat::hears_no_other SECONDS - whether there are several other nodes, and none of them was heard of for longer.
beat::hears_no_other() {
  local number own
  local -i others=0
  own="$(kit::node)"
  for number in "${!KIT_BEAT_AT[@]}"; do
    [[ "${hosts[number]}" != "${own}" ]] || continue # with spares it may be left out itself
    ((SECONDS - KIT_BEAT_AT[number] > $1)) || return 1
    others+=1
  done
  ((others > 1))
}

# beat::silent SECONDS - prints the numbers of the nodes that were not heard of for longer.
beat::silent() {
  local number
  for number in "${!KIT_BEAT_AT[@]}"; do
    ((SECONDS - KIT_BEAT_AT[number] <= $1)) || printf '%d\n' "${number}"
  done
}

# beat::name_silent ASKED_S - names the nodes that had been silent for half of KIT_LATE_S when Slurm was asked; what they sent since then
# is unread. Sets the caller's `silent` if there is one. A first node that has not heard itself, or nobody, cannot tell. With spares it may
# be left out itself: then number 0 is another node.
beat::name_silent() {
  local number
  local -a hosts late names=()
  mapfile -t late < <(beat::silent "$((KIT_LATE_S / 2 + SECONDS - $1))")
  mapfile -t hosts < <(job::hosts)
  for number in "${late[@]}"; do names+=("${hosts[number]}"); done
  [[ " ${names[*]} " != *" $(kit::node) "* ]] && ((${#names[@]} < ${#KIT_BEAT_AT[@]})) || return 0
  ((${#names[@]} == 0)) || silent=yes
  ending::name_lost "${names[@]/%/ silent}"
}

# beat::end - when the ranks have ended.
beat::end() {
  [[ -n "${KIT_BEATS}" ]] || return 0
  exec {KIT_BEATS}<&-
  KIT_BEATS=''
  kill -TERM "${KIT_BEAT_PID}" 2>/dev/null || true
}

# beat::end_ranks SRUN_PID - ends this attempt's steps. Their sruns would wait for a node that does not answer.
beat::end_ranks() {
  local -a steps
  local -i most_s=1
  beat::end
  if [[ -z "${KIT_LOOPBACK:-}" ]]; then
    mapfile -t steps < <(again::running 'ranks|beat')
    if ((${#steps[@]} > 0)); then
      scancel "${steps[@]}" || true
    else
      most_s=10 # Slurm does not answer: srun itself tells the ranks, and needs some seconds for it
      kill -TERM "$1" 2>/dev/null || true
    fi
    kit::await_end "$1" "${most_s}"
    kill -KILL "${KIT_BEAT_PID}" "$1" 2>/dev/null || true
  else
    kill -TERM "$1" 2>/dev/null || true
  fi
  wait "$1" 2>/dev/null || true
}
