#!/usr/bin/env bash
# pulse.sh - on a node, beside its ranks: tells the first node that it lives, until srun ends this. See beat.sh.
#
# KIT_BEAT_S: seconds between two lines. KIT_STALL_S: not empty where the first node wants to know whether the ranks work.
# KIT_FIRST: the first node, which writes KIT_LOG_DIR/.alive. KIT_ID, KIT_ON_PREEMPT, KIT_SECRETS: of the job.
# only: KIT_LEAST_NODES
set -euo pipefail +o posix +o noclobber && shopt -u failglob

readonly BUSY_TICKS=10       # hundredths of a second of CPU time in a second, of all ranks of a node, from which on they work
readonly MOVED_BYTES=1048576 # or what they read and write in a second
readonly WANTED_NS=500000000 # or what one of them wants of a CPU in a second, where it does not get it
seen=()                      # what each process had used when it was last looked at
seen_s="${SECONDS}"
working=0 share=100
readonly WATCHERS=3 # so many nodes behind the first one see whether that lives
alive='' alive_s="${SECONDS}" tried=0

trap '' HUP INT USR1 USR2 # `--signal` of sbatch, and of scancel, tells every step what is meant for the program

# pulse::look - sets `working` to 1 where this node's ranks have used the CPU, or moved data, since the last look. Of the process that
# wanted most of a CPU, `share` is how much of that it got, in percent: others may use the node, too.
pulse::look() {
  local pid line text run waited
  local -a lines stat
  local -i ticks moved used=0 bytes=0 wanted most=0 elapsed_s
  local -A now=()
  # What the job's tasks are, without this one and its like: under `kit run` all nodes are this machine.
  while read -r pid; do
    pid="${pid#/proc/}" pid="${pid%/environ}"
    text=''
    { read -r -d '' text <"/proc/${pid}/stat"; } 2>/dev/null || [[ -n "${text}" ]] || continue
    # shellcheck disable=SC2206  # numbers and a letter
    stat=(${text##*) })
    ticks=$((stat[11] + stat[12] + stat[13] + stat[14])) moved=0
    # read_bytes: a model that is mapped into memory, as safetensors does, is read without rchar.
    mapfile -t lines 2>/dev/null <"/proc/${pid}/io" || lines=()
    for line in "${lines[@]}"; do [[ "${line}" != @(rchar|wchar|read_bytes):* ]] || moved+="${line##* }"; done
    run=0 waited=0
    { read -r run waited _ <"/proc/${pid}/schedstat"; } 2>/dev/null || true # not every kernel has it
    now["${pid}"]="${ticks} ${moved} ${run} ${waited}"
    # shellcheck disable=SC2206  # likewise
    stat=(${seen["${pid}"]:-0 0 0 0})
    used+=$((ticks - stat[0])) bytes+=$((moved - stat[1])) wanted=$((run - stat[2] + waited - stat[3]))
    ((wanted <= most)) || most=wanted share=$((100 * (run - stat[2]) / wanted))
  done < <(grep -lazx -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -lazE '^SLURM_PROCID=' 2>/dev/null | xargs -r grep -LazE '^KIT_BEAT_S=' 2>/dev/null)
  elapsed_s=$((SECONDS - seen_s)) seen_s="${SECONDS}" # this process, too, may have to wait
  ((elapsed_s >= KIT_BEAT_S)) || elapsed_s=KIT_BEAT_S
  # Who wants little of a CPU wakes up now and then, and waits for it longer than it takes.
  ((most >= WANTED_NS * elapsed_s)) || share=100
  ((used < BUSY_TICKS * elapsed_s && bytes < MOVED_BYTES * elapsed_s && most < WANTED_NS * elapsed_s)) && working=0 || working=1
  seen=()
  for pid in "${!now[@]}"; do seen["${pid}"]="${now["${pid}"]}"; done
}

# pulse::watch_first - where Slurm has given up the first node, the batch script is gone, and `--no-kill` keeps the job: it would hold its
# other nodes until its time is over. Slurm is asked only while the first node is silent.
pulse::watch_first() {
  local said='' left
  local -ri patience_s=$((30 + 15 * SLURM_NODEID)) # each at a time of its own
  read -r said 2>/dev/null <"${KIT_LOG_DIR}/.alive" || true
  if [[ "${said}" != "${alive}" ]]; then
    alive="${said}" alive_s="${SECONDS}"
  elif ((SECONDS - alive_s >= patience_s)); then
    alive_s=$((SECONDS - patience_s + 15 * WATCHERS))
    # That of a job which ends shrinks.
    left="$(squeue --noheader --all --states=RUNNING --jobs="${KIT_ID}" --format=%N 2>/dev/null)" && [[ -n "${left}" ]] || return 0
    left="$(scontrol show hostnames "${left}")" && [[ -n "${left}" ]] || return 0
    [[ $'\n'"${left}"$'\n' == *$'\n'"${KIT_FIRST}"$'\n'* ]] || pulse::end_job
  fi
}

# pulse::end_job - in the batch script's place; or has Slurm start the job again, unless somebody wants it to stop.
pulse::end_job() {
  source "${KIT_RUN_DIR}/lib/messages.sh"
  source "${KIT_RUN_DIR}/lib/events.sh"
  KIT_EVENTS="${KIT_LOG_DIR}/events/batch.jsonl"
  local -r problem="${KIT_FIRST}, the first node, is lost, and the batch script with it"
  local -r log="${KIT_RUN_DIR}/log/slurm-${KIT_ID}.out"
  ((++tried > 1)) || event::note node_lost node "${KIT_FIRST}" state down
  if [[ "${KIT_ON_PREEMPT}" != none ]] && ((tried <= 3)) && ! grep -qsx stop -- "${KIT_LOG_DIR}/request"; then # slurmctld may be too busy to answer
    ((tried > 1)) || { event::note requeued && kit::say "${problem}; asking Slurm to start this job again" 2>>"${log}"; }
    scontrol requeue "${KIT_ID}" || true
    return
  fi
  local -r fix="submit it again: $(kit::start_again); with \`on_preempt\` Slurm starts such a job again"
  event::note stopped_by state NODE_FAIL problem "${problem}" fix "${fix}"
  kit::error "${problem}" "${fix}" 2>>"${log}"
  scancel "${KIT_ID}" || true
}

# A pipe that nobody writes to, and a time limit: bash would report the end of a `sleep` that Slurm kills with this step.
exec {never}<> <(:)

# A process of its own, since the disk and Slurm may take minutes, and the beat must not wait for them.
if [[ -n "${KIT_FIRST}" && -z "${KIT_LOOPBACK:-}" ]] && ((SLURM_NODEID >= 1 && SLURM_NODEID <= WATCHERS)); then
  while ! read -r -t 5 -u "${never}"; do pulse::watch_first || true; done >/dev/null &
fi

while :; do
  [[ -z "${KIT_STALL_S}" ]] || pulse::look
  printf '%d %d %d\n' "${SLURM_NODEID}" "${working}" "${share}"
  read -r -t "${KIT_BEAT_S}" -u "${never}" || true
done
