# shellcheck shell=bash
# inside.sh - what every launcher does first inside the container.

# inside::die PROBLEM FIX - to this node's log, and to the file from which the batch part learns it.
inside::die() {
  local file=/dev/null
  [[ -z "${KIT_LOG_DIR:-}" ]] || file="${KIT_LOG_DIR}/node${NODE_RANK}.failed"
  printf 'kit: error: %s: %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" "$2" | tee -a "${file}" >&2
  exit 1
}

# inside::report_overridden - the job's variables that the image, or a hook of the site, sets to something else. The
# job's values hold; but who set them may want to know what they displace.
inside::report_overridden() {
  local kit_pair kit_name kit_other
  for kit_pair in "${KIT_ENV[@]}"; do
    kit_name="${kit_pair%%=*}"
    [[ -n "${!kit_name+set}" && "${!kit_name}" != "${kit_pair#*=}" ]] || continue
    printf -v kit_other '%q' "${!kit_name}"
    case "${kit_name}" in *TOKEN* | *SECRET* | *PASS* | *KEY*) kit_other='another value' ;; esac
    printf 'kit: %s: %s is %q as the job says, not %s as the image or the site says\n' \
      "${SLURMD_NODENAME:-${HOSTNAME}}" "${kit_name}" "${kit_pair#*=}" "${kit_other}" >&2
  done
}

# inside::job_env - called last, so that nothing wins over the job's own variables.
inside::job_env() { ((${#KIT_ENV[@]} == 0)) || export "${KIT_ENV[@]}"; }

# inside::check_gpus - a node that shows fewer GPUs than the job asked for would fail later, in a rank, less clearly.
inside::check_gpus() {
  local -a kit_gpus=()
  if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    IFS=, read -ra kit_gpus <<<"${CUDA_VISIBLE_DEVICES}"
  elif command -v nvidia-smi >/dev/null; then
    mapfile -t kit_gpus < <(nvidia-smi --list-gpus 2>/dev/null | grep '^GPU')
  else
    return 0 # other makes say nothing that bash could count
  fi
  ((${#kit_gpus[@]} >= KIT_GPUS_PER_NODE)) ||
    inside::die "${#kit_gpus[@]} GPUs are visible in the container, and the job asked for ${KIT_GPUS_PER_NODE}" \
      "look at the node: nvidia-smi; without it: sbatch --exclude=${SLURMD_NODENAME:-${HOSTNAME}} run_script.sh"
}

# inside::enter NAME=VALUE... - takes this start's facts from the host, goes to the working directory.
inside::enter() {
  local fact
  for fact in "$@"; do
    export "${fact?}"
  done
  # The image is the same everywhere: one node says it.
  [[ "${NODE_RANK}" != 0 ]] || inside::report_overridden
  # A rehearsal may have fewer.
  ((KIT_GPUS_PER_NODE == 0)) || [[ -n "${KIT_LOOPBACK:-}" ]] || inside::check_gpus
  # enroot's PyTorch hook fills these in from Slurm's task count, which is the number of nodes here.
  unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
  export PYTHONUNBUFFERED=1
  if [[ "${KIT_RUNTIME}" != none ]]; then
    # PyTorch asks for the user's name, and the image may not know this user.
    export USER="${USER:-$(id -un 2>/dev/null || id -u)}"
    # ~/.local may be visible, and its packages would shadow the image's.
    export PYTHONNOUSERSITE=1
    # Caches go to the home folder, which may not be in the container.
    if [[ ! -w "${HOME:-/nonexistent}" ]]; then
      export HOME="/tmp/kit-home-${UID}"
      [[ -d "${HOME}" ]] || (umask 077 && mkdir -p -- "${HOME}")
      # /tmp may be the host's, and code is loaded from these caches.
      [[ -O "${HOME}" && ! -L "${HOME}" ]] || inside::die "${HOME} belongs to somebody else" "have it removed"
    fi
  fi
  # torchrun would set one thread per rank and leave the other CPUs idle.
  local -ri cpus="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-$(nproc)}}"
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cpus > NPROC_PER_NODE ? cpus / NPROC_PER_NODE : 1))}"
  cd -- "${KIT_WORKDIR}" || inside::die "the working directory ${KIT_WORKDIR} is not in the container" "add it to the job's mounts"
}

# inside::find_python - sets KIT_PYTHON to the first Python on PATH that has torch.
inside::find_python() {
  local -a kit_folders
  local kit_folder kit_name
  IFS=: read -ra kit_folders <<<"${PATH}"
  for kit_name in python3 python; do
    for kit_folder in "${kit_folders[@]}"; do
      KIT_PYTHON="${kit_folder}/${kit_name}"
      if [[ -x "${KIT_PYTHON}" && ! -d "${KIT_PYTHON}" ]] && inside::has_torch "${KIT_PYTHON}"; then
        return
      fi
    done
  done
  inside::die "no Python here has torch (looked for python3 and python in ${PATH})" \
    "choose an image that has it, or activate the environment that has it before submitting"
}

# inside::has_torch PYTHON - a look beside it is enough for most; starting a Python takes longer, the more so from a
# cold image.
inside::has_torch() {
  local -r kit_prefix="${1%/*}/.."
  compgen -G "${kit_prefix}/lib/python3*/*-packages/torch" >/dev/null ||
    compgen -G "${kit_prefix}/local/lib/python3*/*-packages/torch" >/dev/null ||
    "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null
}
