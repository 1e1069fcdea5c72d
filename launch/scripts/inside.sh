# shellcheck shell=bash
# inside.sh - what every launcher does first inside the container.

# inside::die PROBLEM FIX - to this node's log, and to the file from which the batch part learns it.
inside::die() {
  local file=/dev/null
  [[ -z "${KIT_LOG_DIR:-}" ]] || file="${KIT_LOG_DIR}/node${NODE_RANK}.failed"
  printf 'kit: error: %s: %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" "$2" | tee -a "${file}" >&2
  exit 1
}

# inside::enter NAME=VALUE... - takes this start's facts from the host, goes to the working directory.
inside::enter() {
  local fact
  for fact in "$@"; do
    export "${fact?}"
  done
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
      (umask 077 && mkdir -p -- "${HOME}")
      # /tmp may be the host's, and code is loaded from these caches.
      [[ -O "${HOME}" && ! -L "${HOME}" ]] || inside::die "${HOME} belongs to somebody else" "have it removed"
    fi
  fi
  # torchrun would set one thread per rank and leave the other CPUs idle.
  local -ri cpus="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-$(nproc)}}"
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cpus > NPROC_PER_NODE ? cpus / NPROC_PER_NODE : 1))}"
  cd -- "${KIT_WORKDIR}" || inside::die "the working directory ${KIT_WORKDIR} is not in the container" "add it to the job's mounts"
}

# inside::python - the first Python on PATH that has torch.
inside::python() {
  local candidate
  while read -r candidate; do
    if "${candidate}" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
      printf '%s\n' "${candidate}"
      return
    fi
  done < <(type -aP python3 python || true)
  inside::die "no Python here has torch (looked for python3 and python in ${PATH})" \
    "choose an image that has it, or activate the environment that has it before submitting"
}
