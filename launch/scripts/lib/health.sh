# health.sh - with `health`: whether a node can work, before anything is started on it. See docs/spares.md.
# only: KIT_HEALTH

source "${KIT_RUN_DIR}/lib/bad_nodes.sh"
source "${KIT_RUN_DIR}/lib/gpus.sh"
source "${KIT_RUN_DIR}/lib/xids.sh"
source "${KIT_RUN_DIR}/lib/clocks.sh"
source "${KIT_RUN_DIR}/lib/scratch.sh"

readonly KIT_ANSWER_S=20   # for the site's program to answer; with spares, KIT_ANSWER_TIMEOUT_S is for everything
readonly KIT_QUERY_S=10    # for nvidia-smi to answer, once it has listed the GPUs
readonly KIT_LEAST_MB=1024 # of memory

# health::check - ends the job where this node is not well, and remembers the node. With spares it was asked before.
health::check() {
  ((KIT_SPARES == 0)) || [[ -n "${KIT_LOOPBACK:-}" ]] || return 0
  health::is_due || return 0
  local problem
  problem="$(health::problem)"
  [[ -n "${problem}" ]] || return 0
  bad_nodes::note "$(kit::node)" "${problem}"
  kit::die "this node ${problem}" \
    "tell those who run the cluster; new jobs leave it out for a day: kit submit; with \`spares: 1\` the job goes on without it" node-unhealthy
}

# health::is_due - whether this node is to be looked at: when the job starts, each of them; when its ranks start again, the one
# that is to blame, if it is known, and the spares, on which no rank has run.
health::is_due() { [[ -z "${KIT_SUSPECT:-}" || " ${KIT_SUSPECT} " == *" $(kit::node) "* ]]; }

# health::problem - prints what is wrong with this node, as in "node3 has ..."; nothing where it is well.
health::problem() {
  if [[ "${KIT_HEALTH}" != quick ]]; then
    health::ask_program
    return
  fi
  local -a problems
  mapfile -t problems < <(
    health::look_at_disk
    health::look_at_memory
    ((KIT_GPUS_PER_NODE == 0)) || ! command -v nvidia-smi >/dev/null || health::look_at_gpus
  )
  printf '%s' "${problems[0]:-}"
}

# health::ask_program - the site's own: it fails where the node cannot work, and says why in its last line.
health::ask_program() {
  local said rc=0 last
  said="$(kit::hear "$((KIT_ANSWER_S + 2))" timeout --kill-after=1 "${KIT_ANSWER_S}" "${KIT_HEALTH}")" || rc=$?
  ((rc != 0)) || return 0
  last="$(health::last_line < <(printf '%s\n' "${said}"))"
  ((rc != 124 && rc != 137)) || last="no answer within ${KIT_ANSWER_S} s"
  printf 'does not pass %s: %s' "${KIT_HEALTH##*/}" "${last:-exit code ${rc}}"
}

# health::last_line - prints the last line of its input, without what means something where it is shown or kept.
health::last_line() { { kit::last_line || true; } | tr '|\000-\011\013-\037\177' '?' | cut -b 1-200; }

health::look_at_disk() {
  local probe said
  if probe="$({ scratch::make_place && mktemp "${KIT_SCRATCH:-/tmp}/.kit-health.XXXXXX"; } 2>&1)"; then
    said="$(printf x 2>&1 >"${probe}")" || true # a full disk takes an empty file
    rm -f -- "${probe}"
  else
    said="${probe}"
  fi
  [[ -z "${said}" ]] || printf 'cannot write to %s: %s\n' "${KIT_SCRATCH:-/tmp}" "${said##*: }"
}

health::look_at_memory() {
  local -i free_mb
  free_mb="$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)"/1024
  ((free_mb >= KIT_LEAST_MB)) || printf 'has %d MB of memory left\n' "${free_mb}"
}

# health::look_at_gpus - what NVIDIA's driver knows. A query that this driver does not know says nothing.
health::look_at_gpus() {
  local listing said='' gpu value
  local -i rc=0
  local -ri begin_s=SECONDS
  listing="$(gpus::ask 2>&1)" || rc=$?
  if ((rc == 124)); then
    printf 'has an nvidia-smi that %s\n' "${listing#nvidia-smi: }"
    return
  elif ((rc != 0)); then
    printf 'has GPUs that do not answer: %s\n' "$(health::last_line < <(printf '%s\n' "${listing#nvidia-smi: }"))"
    return
  fi
  [[ -n "${KIT_LOOPBACK:-}" ]] || said="$(gpus::missing_of "${listing}")" # a rehearsal may have fewer
  printf '%s' "${said:+${said}$'\n'}"
  ((SECONDS - begin_s <= KIT_QUERY_S)) || return 0 # each query would take as long, and would say nothing
  while IFS=', ' read -r gpu value; do
    [[ ! "${value}" =~ ^[1-9][0-9]*$ ]] || printf 'has GPU %s with %s uncorrected memory errors\n' "${gpu}" "${value}"
  done < <(health::query --query-gpu=index,ecc.errors.uncorrected.volatile.total)
  while IFS=', ' read -r gpu value; do
    [[ "${value}" != *[1-9]* && "${value,,}" != *yes* ]] || printf 'has GPU %s with memory rows that wait for a reset, or could not be replaced\n' "${gpu}"
  done < <(health::query --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure)
  while IFS=', ' read -r gpu value; do
    [[ ", ${value}," != *', Active,'* ]] || printf 'has GPU %s slowed down by its hardware, for heat or power\n' "${gpu}"
  done < <(health::query --query-gpu=index,clocks_throttle_reasons.hw_thermal_slowdown,clocks_throttle_reasons.hw_power_brake_slowdown)
  health::look_at_faults
  health::look_at_links
}

# health::look_at_faults - GPUs that have to be reset. Since R570 the driver itself says of each whether that is so now; where it
# does not, what the kernel's log has of the last day counts.
health::look_at_faults() {
  local gpus bus action
  local -a untold=()
  gpus="$(health::query --query-gpu=pci.bus_id,gpu_recovery_action)"
  [[ "${gpus}" =~ ^[0-9A-Fa-f]+: ]] || gpus="$(health::query --query-gpu=pci.bus_id)"
  while IFS=', ' read -r bus action; do
    [[ "${bus}" =~ ^[0-9A-Fa-f]+: ]] || continue
    case "${action,,}" in
      none) ;;
      *reset* | *reboot* | *drain* | *recover*) printf 'has GPU %s, whose driver asks for: %s\n' "${bus}" "${action//[^A-Za-z0-9_ ]/?}" ;;
      *) untold+=("${bus}") ;;
    esac
  done < <(printf '%s\n' "${gpus}")
  xids::find "${untold[@]}"
}

# health::look_at_links - a GPU that has fewer NVLinks up than others of its kind in this node. Links that none of them uses are
# no fault: bridges connect some GPUs by less than all of their links.
health::look_at_links() {
  health::ask_smi nvlink --status | LC_ALL=C awk '
    /^GPU [0-9]+: / { name = $0; sub(/^GPU [0-9]+: /, "", name); sub(/ \(UUID: .*/, "", name); gpu = $2 + 0; kind[gpu] = name; next }
    /Link [0-9]+: *[0-9.]+ *GB/ { if (++up[gpu] > most[kind[gpu]]) most[kind[gpu]] = up[gpu]; if (gpu > last) last = gpu }
    END {
      for (gpu = 0; gpu <= last; gpu++)
        if (up[gpu] && up[gpu] < most[kind[gpu]]) printf "has GPU %d with %d NVLinks up, while another has %d\n", gpu, up[gpu], most[kind[gpu]]
    }'
}

# health::query OPTION - prints a line for each GPU.
health::query() { health::ask_smi "$1" --format=csv,noheader,nounits; }

# health::ask_smi WORD... - prints what nvidia-smi answers, if it does.
health::ask_smi() { kit::hear "$((KIT_QUERY_S + 1))" sh -c 'exec "$@" 2>/dev/null' sh timeout "${KIT_QUERY_S}" nvidia-smi "$@" || true; }

# health::warn - on the first node, when all are ready: what makes no node bad.
health::warn() {
  [[ "${KIT_HEALTH}" == quick && -z "${KIT_IS_AGAIN:-}" ]] || return 0
  xids::warn
  clocks::warn
}
