# gpus.sh - which GPUs a machine, or a container, has.
# only: KIT_GPUS_PER_NODE KIT_HEALTH KIT_SPARES

# The longest that `nvidia-smi --list-gpus` may take. Where persistence mode is off, the driver first sets up each GPU: 12 to 40 s for
# eight of them, on a healthy node. Tests set KIT_GPUS_TIMEOUT_S.
KIT_GPUS_TIMEOUT_S="${KIT_GPUS_TIMEOUT_S:-45}"

# gpus::ask - prints a line for each GPU, and for each part of one (MIG), as nvidia-smi lists them. Where that cannot be told it fails,
# with the tool's words on standard error and its exit code: 124 where it has not answered in time.
gpus::ask() {
  local kit_said
  local -i kit_rc=0
  local -a kit_words=(timeout "${KIT_GPUS_TIMEOUT_S}" nvidia-smi --list-gpus)
  command -v timeout >/dev/null || kit_words=("${kit_words[@]:2}")
  if [[ -e /dev/kfd ]] && ! command -v nvidia-smi >/dev/null; then
    grep -ls '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties | sed 's/.*/GPU : AMD GPU/' || true
    return 0
  fi
  kit_said="$(kit::hear "$((KIT_GPUS_TIMEOUT_S + 1))" "${kit_words[@]}")" || kit_rc=$?
  if ((kit_rc == 0)); then
    printf '%s\n' "${kit_said}"
    return 0
  fi
  command -v nvidia-smi >/dev/null || kit_said='is not installed'
  ((kit_rc != 124)) || kit_said="has not answered within ${KIT_GPUS_TIMEOUT_S} s"
  printf 'nvidia-smi: %s\n' "${kit_said##*$'\n'}" >&2
  return "${kit_rc}"
}

# gpus::names - prints the name of each GPU of what gpus::ask has printed, which is the input.
gpus::names() { sed -n 's/ (UUID: .*//; s/^GPU [0-9]*: *//p'; }

# gpus::missing_of LISTING - prints "shows 1 of 2 GPUs" where there are fewer than the job asked for in what gpus::ask has printed. What are
# GPUs to Slurm may be parts of one.
gpus::missing_of() {
  local -i kit_count
  kit_count="$(gpus::names < <(printf '%s\n' "$1") | grep -c .)" || kit_count=0
  ((kit_count >= KIT_GPUS_PER_NODE)) || [[ "$1" == *' MIG '* ]] || printf 'shows %d of %d GPUs' "${kit_count}" "${KIT_GPUS_PER_NODE}"
}

# gpus::bring_memory [DEV] - CUDA needs /dev/nvidia-uvm. On a node that was just booted, its first user makes the driver bring it, by
# nvidia-modprobe, which no container has.
gpus::bring_memory() {
  local -r dev="${1:-/dev}"
  [[ -e "${dev}/nvidiactl" && ! -e "${dev}/nvidia-uvm" ]] || return 0
  timeout 20 nvidia-modprobe -u -c 0 >/dev/null 2>&1 || true
  [[ -e "${dev}/nvidia-uvm" ]] ||
    kit::warn "this node has no /dev/nvidia-uvm, without which CUDA does not start" "have the module nvidia-uvm loaded there: nvidia-modprobe -u -c 0"
}

# gpus::check NAME=VALUE... - a node that shows fewer GPUs than the job asked for would fail later, in a rank, less clearly, or
# train on its CPUs. CUDA_VISIBLE_DEVICES, or AMD's, is Slurm's word, whether or not the container has these devices; unless it is not
# among what the node hands on.
gpus::check() {
  local kit_said
  local -i kit_rc=0
  local -a kit_gpus=()
  local kit_where='the container' kit_name=CUDA_VISIBLE_DEVICES
  [[ "${KIT_RUNTIME}" != none ]] || kit_where='this node'
  { compgen -G '/dev/nvidia[0-9]*' || compgen -G '/dev/dri/renderD*' || compgen -G '/dev/accel/accel*' || [[ -e /dev/kfd || -e /dev/dxg ]]; } >/dev/null ||
    kit::die "${kit_where} shows no GPU's device file (/dev/nvidia0), and the job asked for ${KIT_GPUS_PER_NODE}" \
      "look at the node: nvidia-smi; a container gets its GPUs from the NVIDIA Container Toolkit, or from its runtime's own option" fewer-gpus
  [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]] || kit_name=ROCR_VISIBLE_DEVICES
  if [[ -n "${!kit_name:-}" ]]; then
    kit::split kit_gpus , "${!kit_name}"
  elif command -v nvidia-smi >/dev/null; then
    kit_said="$(gpus::ask 2>/dev/null)" || kit_rc=$?
    ((kit_rc != 124)) || return 0 # a slow tool says nothing of the GPUs
    mapfile -t kit_gpus < <(gpus::names < <(printf '%s\n' "${kit_said}"))
  else
    return 0 # other makes say nothing that counts as well inside a container
  fi
  ((${#kit_gpus[@]} < KIT_GPUS_PER_NODE)) || return 0
  local kit_fix
  kit_fix="look at the node: nvidia-smi; without it: $(kit::start_again "$(kit::node)")"
  [[ -z "${!kit_name:-}" || " $*" == *" ${kit_name}="* ]] ||
    kit_fix="${kit_name} is ${!kit_name} there, which the image sets, and not Slurm: make an image without it"
  local -r kit_option="$(gpus::binding_option)"
  [[ -z "${kit_option}" ]] ||
    kit_fix="Slurm binds each task to GPUs of its own by its option ${kit_option}: leave that out, or write \`gpu-bind: none\` under \`slurm\`"
  kit::die "${kit_where} shows ${#kit_gpus[@]} of the ${KIT_GPUS_PER_NODE} GPUs that the job asked for" "${kit_fix}" fewer-gpus
}

# gpus::binding_option - prints the option of sbatch by which Slurm shows a task only some GPUs of its node, if the job has one.
gpus::binding_option() {
  if [[ -n "${SLURM_GPU_BIND:-}" && "${SLURM_GPU_BIND}" != *none ]]; then
    printf 'gpu-bind'
  elif [[ -n "${SLURM_GPUS_PER_TASK:-}" ]]; then
    printf 'gpus-per-task'
  elif [[ -n "${SLURM_NTASKS_PER_GPU:-}" ]]; then
    printf 'ntasks-per-gpu'
  elif [[ "${SLURM_TRES_PER_TASK:-}" == *gpu* ]]; then
    printf 'tres-per-task'
  fi
}
