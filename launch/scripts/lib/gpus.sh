# gpus.sh - which GPUs a machine, or a container, has.
# only: KIT_GPUS_PER_NODE KIT_HEALTH KIT_SPARES

# gpus::list - prints the name of each GPU. Fails, with the tool's words on standard error, where that cannot be told.
gpus::list() {
  local kit_said
  local -a kit_words=(timeout 10 nvidia-smi --list-gpus)
  command -v timeout >/dev/null || kit_words=("${kit_words[@]:2}")
  if [[ -e /dev/kfd ]] && ! command -v nvidia-smi >/dev/null; then
    grep -ls '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties | sed 's/.*/AMD GPU/' || true
  elif kit_said="$("${kit_words[@]}" 2>&1)"; then
    sed -n 's/ (UUID: .*//; s/^GPU [0-9]*: *//p' <<<"${kit_said}"
  else
    command -v nvidia-smi >/dev/null || kit_said='is not installed'
    printf 'nvidia-smi: %s\n' "${kit_said##*$'\n'}" >&2
    return 1
  fi
}

# gpus::missing - prints "shows 1 of 2 GPUs" where there are fewer than the job asked for. What are GPUs to Slurm may be parts of one.
gpus::missing() {
  local -i kit_count
  kit_count="$(gpus::list 2>/dev/null | grep -c .)" || kit_count=0
  ((kit_count >= KIT_GPUS_PER_NODE)) || [[ "$(timeout 10 nvidia-smi --list-gpus 2>/dev/null)" == *' MIG '* ]] || printf 'shows %d of %d GPUs' "${kit_count}" "${KIT_GPUS_PER_NODE}"
}

# gpus::check - a node that shows fewer GPUs than the job asked for would fail later, in a rank, less clearly, or
# train on its CPUs. CUDA_VISIBLE_DEVICES is Slurm's word, whether or not the container has these devices.
gpus::check() {
  local -a kit_gpus=()
  [[ -n "$(compgen -G '/dev/nvidia[0-9]*' || compgen -G '/dev/dri/renderD*' || compgen -G '/dev/kfd' || compgen -G '/dev/dxg')" ]] ||
    kit::die "no GPU's device file (/dev/nvidia0) is in the container, and the job asked for ${KIT_GPUS_PER_NODE}" \
      "look at the node: nvidia-smi; a container gets its GPUs from the NVIDIA Container Toolkit, or from its runtime's own option" fewer-gpus
  if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    IFS=, read -ra kit_gpus <<<"${CUDA_VISIBLE_DEVICES}"
  elif command -v nvidia-smi >/dev/null; then
    mapfile -t kit_gpus < <(gpus::list 2>/dev/null)
  else
    return 0 # other makes say nothing that counts as well inside a container
  fi
  ((${#kit_gpus[@]} >= KIT_GPUS_PER_NODE)) ||
    kit::die "the container shows ${#kit_gpus[@]} of the ${KIT_GPUS_PER_NODE} GPUs that the job asked for" \
      "look at the node: nvidia-smi; without it: sbatch --exclude=${SLURMD_NODENAME:-${HOSTNAME}} run_script.sh" fewer-gpus
}
