#!/usr/bin/env bash
# pulse.sh - on a node, beside its ranks: tells the first node that it lives, until srun ends this. See beat.sh.
#
# KIT_BEAT_S: seconds between two lines. KIT_STALL_S: not empty where the first node wants to know whether the ranks work.
# only: beat
set -euo pipefail +o posix

readonly BUSY_TICKS=10       # hundredths of a second of CPU time in a second, of all ranks of a node, from which on they work
readonly MOVED_BYTES=1048576 # or what they read and write in a second
seen=()                      # what each process had used when it was last looked at
working=0

# pulse::look - sets `working` to 1 where this node's ranks have used the CPU, or moved data, since the last look.
pulse::look() {
  local pid name value text
  local -a stat
  local -i ticks moved used=0 bytes=0
  local -A now=()
  # The job's processes, without this one and its like: under `kit run` every node has one on this machine.
  while read -r pid; do
    pid="${pid#/proc/}" pid="${pid%/environ}"
    text=''
    { read -r -d '' text <"/proc/${pid}/stat"; } 2>/dev/null || [[ -n "${text}" ]] || continue
    read -ra stat <<<"${text##*) }"
    ticks=$((stat[11] + stat[12] + stat[13] + stat[14])) moved=0
    while read -r name value; do [[ "${name}" != [rw]char: ]] || moved+=value; done 2>/dev/null <"/proc/${pid}/io" || true
    now["${pid}"]="${ticks} ${moved}"
    read -r name value <<<"${seen["${pid}"]:-0 0}"
    used+=$((ticks - name)) bytes+=$((moved - value))
  done < <(grep -lazx -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -LazE '^KIT_BEAT_S=' 2>/dev/null)
  ((used < BUSY_TICKS * KIT_BEAT_S && bytes < MOVED_BYTES * KIT_BEAT_S)) && working=0 || working=1
  seen=()
  for pid in "${!now[@]}"; do seen["${pid}"]="${now["${pid}"]}"; done
}

while :; do
  [[ -z "${KIT_STALL_S}" ]] || pulse::look
  printf '%d %d\n' "${SLURM_NODEID}" "${working}"
  sleep "${KIT_BEAT_S}"
done
