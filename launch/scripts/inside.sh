# shellcheck shell=bash
# inside.sh - what every launcher does first inside the container.

# shellcheck source=stamps.sh
source "${KIT_SCRIPTS}/stamps.sh"

# shellcheck source=secrets.sh
source "${KIT_SCRIPTS}/secrets.sh"

# inside::die PROBLEM FIX - to this node's log, and to the file from which the batch part learns it.
inside::die() {
  local file=/dev/null
  [[ -z "${KIT_LOG_DIR:-}" || -n "${KIT_INSTEAD[*]:-}" ]] || file="${KIT_LOG_DIR}/node${NODE_RANK}.failed"
  printf 'kit: error: %s: %s\n  fix: %s\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" "$2" | tee -a "${file}" >&2
  exit 1
}

# inside::report_overridden - the job's variables that the image, or a hook of the site, sets to something else. The
# job's values hold; but who set them may want to know what they displace.
inside::report_overridden() {
  local kit_pair kit_name kit_own kit_other
  for kit_pair in "${KIT_ENV[@]}"; do
    kit_name="${kit_pair%%=*}"
    [[ -n "${!kit_name+set}" && "${!kit_name}" != "${kit_pair#*=}" ]] || continue
    printf -v kit_own '%q' "${kit_pair#*=}"
    printf -v kit_other '%q' "${!kit_name}"
    case "${kit_name^^}" in *TOKEN* | *SECRET* | *PASS* | *KEY*) kit_own='(not shown)' kit_other='another value' ;; esac
    printf 'kit: %s: %s is %s as the job says, not %s as the image or the site says\n' \
      "${SLURMD_NODENAME:-${HOSTNAME}}" "${kit_name}" "${kit_own}" "${kit_other}" >&2
  done
}

# inside::job_env - called last, so that nothing wins over the job's own variables. KIT_PATH is the container's own PATH, on
# which the tools of these scripts are: the job's may lead to nothing but the program.
inside::job_env() {
  export KIT_PATH="${PATH}"
  ((${#KIT_ENV[@]} == 0)) || export "${KIT_ENV[@]}"
}

# inside::check_secrets - said before the ranks start, too, and not by each of them.
inside::check_secrets() {
  secrets::are_there ||
    inside::die "the values of the job's secrets cannot be read here: ${KIT_SECRETS_FILE}" \
      "the run directory must be in the container, and this user its owner; if the run has ended: kit rerun reads them anew"
}

# inside::check_gpus - a node that shows fewer GPUs than the job asked for would fail later, in a rank, less clearly, or
# train on its CPUs. CUDA_VISIBLE_DEVICES is Slurm's word, whether or not the container has these devices.
inside::check_gpus() {
  local -a kit_gpus=()
  [[ -n "$(compgen -G '/dev/nvidia[0-9]*' || compgen -G '/dev/dri/renderD*' || compgen -G '/dev/kfd' || compgen -G '/dev/dxg')" ]] ||
    inside::die "no GPU's device file (/dev/nvidia0) is in the container, and the job asked for ${KIT_GPUS_PER_NODE}" \
      "look at the node: nvidia-smi; a container has its GPUs by the NVIDIA container toolkit (enroot, pyxis) or --nv (apptainer)"
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

# inside::begin SCRIPT NAME=VALUE... - every value of this run, those of this start, and a place to work in.
inside::begin() {
  KIT_RUN_DIR="${1%/*}"
  [[ "${KIT_RUN_DIR}" == /* ]] || KIT_RUN_DIR="$(cd -- "$(dirname -- "$1")" && pwd)" # by hand
  export KIT_RUN_DIR
  inside::take "${@:2}" # env.sh reads the number of an array's task
  # shellcheck source=/dev/null
  source "${KIT_RUN_DIR}/env.sh"
  inside::enter "${@:2}"
  ((${#KIT_INSTEAD[@]} == 0)) || inside::become "${KIT_INSTEAD[@]}"
}

# inside::take NAME=VALUE... [-- COMMAND...] - sets KIT_INSTEAD to what runs instead of the ranks, beside those that run.
inside::take() {
  while (($#)) && [[ "$1" != -- ]]; do
    export "${1?}"
    shift
  done
  KIT_INSTEAD=("${@:2}")
}

# inside::become COMMAND... - with the same variables as the ranks have.
inside::become() {
  inside::job_env
  command -v -- "$1" >/dev/null || {
    printf 'kit: error: %s: there is no %s in the container\n  fix: choose another command, or an image that has it\n' "${SLURMD_NODENAME:-${HOSTNAME}}" "$1" >&2
    exit 127
  }
  secrets::take
  exec "$@"
}

# inside::enter NAME=VALUE... - takes this start's facts from the host, goes to the working directory.
inside::enter() {
  inside::take "$@" # they win over env.sh
  stamp::now
  export KIT_ENTERED="${KIT_NOW}"
  inside::check_secrets
  [[ -z "${KIT_SECRETS:-}" ]] || export KIT_SECRETS # their names, for what starts a rank
  # The image is the same everywhere: one process says it.
  [[ "${NODE_RANK}${SLURM_LOCALID:-0}" != 00 || -n "${KIT_INSTEAD[*]:-}" ]] || inside::report_overridden
  # A rehearsal may have fewer; and who looks into a job may look for them.
  if ((KIT_GPUS_PER_NODE > 0)) && [[ -z "${KIT_LOOPBACK:-}${KIT_INSTEAD[*]:-}" ]]; then
    inside::check_gpus
    export KIT_GPUS_PER_NODE # for programs that would rather end than train on a CPU
  fi
  # enroot's PyTorch hook fills these in from Slurm's task count, which is the number of nodes here.
  unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
  export PYTHONUNBUFFERED=1
  if [[ "${KIT_ON_PREEMPT}" == checkpoint ]]; then
    # docs/preemption.md says what a program does with them.
    export KIT_PROGRESS="${KIT_LOG_DIR}/progress" KIT_CHECKPOINT_FILE="${KIT_LOG_DIR}/checkpoint.${SLURM_RESTART_COUNT:-0}"
  fi
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
  inside::use_snapshot
  inside::choose_threads
  cd -- "${KIT_WORKDIR}" || inside::die "the working directory ${KIT_WORKDIR} is not in the container" "add it to the job's mounts"
}

# inside::choose_threads - torchrun would set one thread per rank and leave the other CPUs idle; so would Enroot's PyTorch hook
# where a node has several tasks, unless the image names a number itself.
inside::choose_threads() {
  local -i kit_cpus="${SLURM_CPUS_ON_NODE:-$(nproc)}"
  if [[ "${KIT_RUNTIME}" == @(enroot|pyxis) && -n "${PYTORCH_VERSION:-}" && "${OMP_NUM_THREADS:-}" == 1 ]] && ((KIT_TASKS_PER_NODE > 1)); then
    grep -qs '^OMP_NUM_THREADS=' /etc/environment || unset OMP_NUM_THREADS
  fi
  [[ -z "${SLURM_CPUS_PER_TASK:-}" ]] || kit_cpus=$((SLURM_CPUS_PER_TASK * KIT_TASKS_PER_NODE))
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((kit_cpus > NPROC_PER_NODE ? kit_cpus / NPROC_PER_NODE : 1))}"
}

# inside::use_snapshot - the code as it was at submission comes before what is installed of the same name. A PYTHONPATH of
# the job's own, which replaces this one, begins with it, too.
inside::use_snapshot() { [[ -z "${KIT_CODE:-}" ]] || export KIT_CODE PYTHONPATH="${KIT_CODE}${PYTHONPATH:+:${PYTHONPATH}}"; }

# inside::find_python MODULE... - sets KIT_PYTHON to the first Python on PATH that has one of them, and KIT_HAS to that
# one. Else to the first Python: whether the program can do without is for its launcher to say.
inside::find_python() {
  local -a kit_folders
  local kit_folder kit_name kit_python
  KIT_PYTHON='' KIT_HAS=''
  IFS=: read -ra kit_folders <<<"${PATH}"
  for kit_name in python3 python; do
    for kit_folder in "${kit_folders[@]}"; do
      kit_python="${kit_folder}/${kit_name}"
      [[ -x "${kit_python}" && ! -d "${kit_python}" ]] || continue
      KIT_PYTHON="${KIT_PYTHON:-${kit_python}}"
      for KIT_HAS in "$@"; do
        if inside::has_module "${kit_python}" "${KIT_HAS}"; then
          KIT_PYTHON="${kit_python}"
          return
        fi
      done
    done
  done
  KIT_HAS=''
}

# inside::has_module PYTHON MODULE - a look beside it is enough for most; starting a Python takes longer, the more so from
# a cold image.
inside::has_module() {
  inside::has_file "$@" ||
    "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)' "$2" 2>/dev/null
}

# inside::has_file PYTHON FILE - among the packages beside it.
inside::has_file() {
  local -r kit_prefix="${1%/*}/.."
  compgen -G "${kit_prefix}/lib/python3*/*-packages/$2" >/dev/null || compgen -G "${kit_prefix}/local/lib/python3*/*-packages/$2" >/dev/null
}

# inside::choose_program MODULE... - sets KIT_PROGRAM: a Python program as its own line in a shell would start it, with the
# first Python that has one of the modules, unless one was found before; anything else as it is, and no Python is looked for.
inside::choose_program() {
  KIT_PROGRAM=("${KIT_COMMAND[@]}")
  case "${KIT_PROGRAM[0]}" in
    *.py | python | python3) ;;
    *) return ;;
  esac
  [[ -n "${KIT_PYTHON:-}" ]] || inside::find_python "$@"
  [[ -n "${KIT_PYTHON}" ]] ||
    inside::die "there is no Python here (looked for python3 and python in ${PATH})" "choose an image that has it"
  case "${KIT_PROGRAM[0]}" in
    *.py) KIT_PROGRAM=("${KIT_PYTHON}" -u "${KIT_PROGRAM[@]}") ;;
    *) KIT_PROGRAM[0]="${KIT_PYTHON}" ;;
  esac
}
