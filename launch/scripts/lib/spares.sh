# spares.sh - with `spares: k` the job has k nodes more than it needs. Each is asked whether it can work, before any container
# is made; the job starts on those that can, and bad ones are remembered for the jobs to come. See docs/spares.md.
# only: KIT_SPARES

source "${KIT_RUN_DIR}/lib/network.sh"
source "${KIT_RUN_DIR}/lib/gpus.sh"
source "${KIT_RUN_DIR}/lib/bad_nodes.sh"
source "${KIT_RUN_DIR}/lib/scratch.sh"

# The longest that a node may take to answer. It covers the start of the step, for which Slurm needs longer on more nodes; the checks take
# less than a second, but nvidia-smi may take up to KIT_GPUS_TIMEOUT_S where the driver is not kept loaded, and `health` calls it several
# times.
KIT_ANSWER_TIMEOUT_S="${KIT_ANSWER_TIMEOUT_S:-$(($([[ -n "${KIT_HEALTH:-}" || "${KIT_GPUS_PER_NODE:-0}" != 0 ]] && echo 90 || echo 30) + ${SLURM_JOB_NUM_NODES:-0} / 50))}"
readonly KIT_DISK_MB=1024 # free on the node's own disk

# spares::choose - sets KIT_HOSTS to the nodes to use, and NNODES to their number.
spares::choose() {
  [[ -z "${KIT_LOOPBACK:-}" ]] || return 0 # kit run has no spares
  local -a hosts
  mapfile -t hosts < <(job::hosts)
  # Some of the job's nodes may be lost by now.
  local -r needed=$((${SLURM_JOB_NUM_NODES:-${#hosts[@]}} - KIT_SPARES))
  local -a first=("${hosts[@]:0:KIT_SPARES+1}") # one of them is good, unless there are more bad ones than spares
  ((needed > 0)) || kit::die "${#hosts[@]} nodes were allocated, and ${KIT_SPARES} of them should be spares" "ask for more: nodes, or sbatch --nodes" nodes-bad
  local -A problem=() deaf=()
  local fix="see why above; kit submit leaves the bad ones out"
  # What srun says of these tasks stays out of the job's log, where ending::ask_srun looks for the first rank to fail.
  local said_by_srun="${KIT_LOG_DIR}/.asked"
  spares::ask "${first[@]}"
  local master host
  local -a good=()
  for master in "${first[@]}"; do
    good=()
    for host in "${hosts[@]}"; do
      # The master has to be the first, so those before it are out, too.
      [[ "${host}" == "${master}" || ${#good[@]} -gt 0 ]] || continue
      [[ -n "${problem["${host}"]:-}" || " ${deaf["${host}"]:-} " == *" ${master} "* ]] || good+=("${host}")
    done
    ((${#good[@]} < needed)) || break
  done
  if ((${#good[@]} >= needed)); then
    for host in "${hosts[@]}"; do
      [[ "${host}" != "${master}" ]] || break
      problem["${host}"]="${problem["${host}"]:-is not reached by the others}"
    done
    for host in "${!deaf[@]}"; do # where no master was found, who reaches whom says nothing of who is bad
      [[ " ${deaf["${host}"]} " != *" ${master} "* ]] || problem["${host}"]="${problem["${host}"]:-cannot reach ${master}}"
    done
  fi
  ((${#good[@]} >= needed)) || ! spares::is_alone || spares::judge_alone
  spares::remember
  local -i able=0
  for host in "${hosts[@]}"; do [[ -n "${problem["${host}"]:-}" ]] || able+=1; done
  if ((${#good[@]} < needed)); then
    spares::go_on "too few nodes can work"
    kit::die "${able} of ${#hosts[@]} nodes can work, and the job needs ${needed}, which all reach the first of them" "${fix}" nodes-bad
  fi
  KIT_HOSTS="$(IFS=, && printf '%s' "${good[*]:0:needed}")" NNODES="${needed}"
  kit::say "starting on $(printf '%s\n' "${good[@]:0:needed}" | kit::first_ten)"
}

# spares::go_on WHY - has a job whose ranks start again go back to the queue, where it may: Slurm finds better nodes then.
spares::go_on() { [[ -z "${KIT_IS_AGAIN:-}" ]] || kit::if_there preempt::go_on "$1"; }

# spares::ask MASTER... - has every node check itself, and whether it reaches these. Sets `problem`, and `deaf`: whom a node does not
# reach.
spares::ask() {
  local -a asked=("${hosts[@]}")
  local -i rc=0
  local host
  { : >"${said_by_srun}"; } 2>/dev/null || said_by_srun=/dev/null
  for host in "${hosts[@]}"; do problem["${host}"]="does not answer"; done
  KIT_SLURMD_PORT="$(spares::slurmd_port)"
  export KIT_SLURMD_PORT KIT_LOG_DIR
  spares::ask_nodes "$@" || rc=$?
  ending::heed_early_signal # its tasks end with the job: that a node has not answered says nothing of the node
  if ((rc > 0 && rc != 124)); then
    # Where srun does not reach one node, it ends the others' tasks, too: those that had no time to answer are asked again.
    asked=()
    for host in "${hosts[@]}"; do
      [[ -n "${deaf["${host}"]+answered}" ]] || spares::has_failed_to_start "${host}" || asked+=("${host}")
    done
    ((${#asked[@]} == ${#hosts[@]} || ${#asked[@]} == 0)) || spares::ask_nodes "$@" || true
    ending::heed_early_signal
  fi
  ((${#deaf[@]} == 0)) || return 0
  cat -- "${said_by_srun}" >&2 || true
  spares::go_on "no node has answered"
  ((rc != 124)) ||
    kit::die "no node has answered within ${KIT_ANSWER_TIMEOUT_S} s" "Slurm was slow to start a step, which says nothing about the nodes: submit again"
  kit::die "srun did not start on any node (code ${rc})" "its message is above and says nothing about the nodes: submit again"
}

# spares::has_failed_to_start HOST - whether srun has said so.
spares::has_failed_to_start() { grep -qsF " failed on node $1: " -- "${said_by_srun}"; }

# spares::ask_nodes MASTER... - asks the caller's `asked`, until srun has ended, whose code it returns, or their time is over: 124.
spares::ask_nodes() {
  local -a step
  # By their names, else Slurm may put this step on a node that the job has lost; and where one never answers, this step never ends: the
  # others must not wait for its CPUs.
  step::beside "${asked[@]}"
  step+=(--open-mode=append --error="${KIT_ATTEMPT_DIR#"${KIT_RUN_DIR}"/}/%N.out")
  local host answers said unreached part line=''
  local -i rc=0
  local -ri begin_s=SECONDS
  exec {answers}< <(exec "${step[@]}" bash "${KIT_RUN_DIR}/run_script.sh" check "$@" 2>>"${said_by_srun}")
  local -r srun_pid=$!
  while [[ -z "${KIT_SIGNAL}" ]] && ((SECONDS - begin_s < KIT_ANSWER_TIMEOUT_S)); do
    rc=0
    IFS= read -r -t 1 -u "${answers}" part || rc=$?
    line+="${part}"                   # where the second is over, it may be half a line
    if ((rc != 0 && rc <= 128)); then # all have ended
      exec {answers}<&-
      wait "${srun_pid}"
      return
    fi
    ((rc == 0)) || continue
    host="${line%%|*}" said="${line#*|}" line=''
    unreached="${said%%|*}" said="${said#*|}"
    [[ -n "${host}" && -n "${problem["${host}"]+asked}" ]] || continue # the node's BASH_ENV may have a greeting
    problem["${host}"]="${said}" deaf["${host}"]="${unreached}"
  done
  exec {answers}<&-
  kill -TERM "${srun_pid}" 2>/dev/null || true
  return 124
}

# spares::is_alone - whether no node but this one has answered. Its task needs no network and no Prolog of another node, so it does not
# show that Slurm has started the others.
spares::is_alone() { ((${#deaf[@]} == 1)) && [[ -n "${deaf["$(kit::node)"]+answered}" ]]; }

# spares::judge_alone - which node is bad where too few can work and this one alone has answered: this one, if it reaches no other; it is
# more likely to be the bad one than all the others. Else Slurm may only have been slow.
spares::judge_alone() {
  ((${#hosts[@]} > 2)) || return 0
  local -a others
  mapfile -t others < <(printf '%s\n' "${hosts[@]}" | grep -vxF -- "$(kit::node)" | head -n 16)
  if (($(spares::unreached "${others[@]}" | wc -w) == ${#others[@]})); then
    problem=(["$(kit::node)"]="reaches none of ${#hosts[@]} nodes")
  else
    cat -- "${said_by_srun}" >&2 || true
  fi
}

# spares::unreached HOST... - prints those that this node does not reach; itself it does.
spares::unreached() {
  local host KIT_EVENTS='' # a name without an address is no refusal of the job
  for host in "$@"; do     # at the same time
    [[ "${host}" == "$(kit::node)" ]] || spares::reaches "${host}" || printf '%s ' "${host}" &
  done
  wait
}

# spares::remember - says which nodes are left out, and notes the bad ones where `kit submit` looks; for a day. A node that does not answer
# is bad if the others do, or if srun says so of it; else the caller's `fix` is to submit again.
spares::remember() {
  local host
  for host in "${hosts[@]}"; do
    [[ -n "${problem["${host}"]:-}" ]] || continue
    event::note spare_left_out node "${host}" problem "${problem["${host}"]}"
    kit::say "leaving out ${host}: ${problem["${host}"]}"
    if spares::may_be_late "${host}"; then
      fix="see why above; those that did not answer may have started too late, for Slurm or a Prolog was slow: submit again"
    else
      bad_nodes::note "${host}" "${problem["${host}"]}"
    fi
  done
}

# spares::may_be_late HOST - whether it has not answered, for which Slurm alone may be to blame: only one node has, or more than
# three have not that are more than a tenth of all.
spares::may_be_late() {
  local -ri silent=${#hosts[@]}-${#deaf[@]}
  [[ -z "${deaf["$1"]+answered}" ]] && ((${#deaf[@]} == 1 || silent > 3 && 10 * silent > ${#hosts[@]})) && ! spares::has_failed_to_start "$1"
}

# spares::answer MASTER... - on a node: its name, whom it does not reach, and what else is wrong.
spares::answer() {
  local -r place="${KIT_SCRATCH:-/tmp}"
  local problem='' unreached free_mb
  export KIT_EVENTS="${KIT_LOG_DIR:+${KIT_LOG_DIR}/events/${SLURMD_NODENAME:-${HOSTNAME}}.jsonl}"
  unreached="$(spares::unreached "$@")"
  if ! free_mb="$({ scratch::make_place && df --output=avail --block-size=1M -- "${place}"; } 2>&1 | tail -n 1)"; then
    problem="cannot use ${place}: ${free_mb##*: }"
  elif ((free_mb < KIT_DISK_MB)); then
    problem="has ${free_mb// /} MB free in ${place}, less than ${KIT_DISK_MB}"
  elif [[ "${KIT_HEALTH:-}" == quick ]] && health::is_due; then
    : # it lists the GPUs itself, and one listing may take most of the time
  elif ((KIT_GPUS_PER_NODE > 0)) && command -v nvidia-smi >/dev/null; then
    problem="$(spares::missing_gpus)"
  fi
  [[ -n "${problem}" || -z "${KIT_HEALTH:-}" ]] || ! health::is_due || problem="$(health::problem)"
  printf '%s|%s|%s\n' "$(kit::node)" "${unreached% }" "${problem}"
}

# spares::missing_gpus - prints "shows 1 of 2 GPUs" where there are fewer than the job asked for, or that this cannot be told.
spares::missing_gpus() {
  local listing
  local -i rc=0
  listing="$(gpus::ask 2>/dev/null)" || rc=$?
  if ((rc == 124)); then
    printf 'has an nvidia-smi that has not answered within %s s' "${KIT_GPUS_TIMEOUT_S}"
  else
    gpus::missing_of "${listing}"
  fi
}

# spares::reaches HOST - slurmd listens there, so nothing of ours has to: what its port shows is the way there. Where the port is not
# known, nobody can tell.
spares::reaches() {
  local address
  [[ -n "${KIT_SLURMD_PORT}" ]] || return 0
  address="$(net::address "$1" 2>/dev/null)" && timeout 5 bash -c "exec 3<>/dev/tcp/${address}/${KIT_SLURMD_PORT}" >/dev/null 2>&1
}

# spares::slurmd_port - prints nothing where Slurm does not answer: a site's port may be another than Slurm's default.
spares::slurmd_port() { scontrol show config 2>/dev/null | sed -n 's/^SlurmdPort *= *\([0-9]*\).*/\1/p' || true; }
