# container.sh - what every launcher does first inside the container: it takes the values of this run and of this start, and
# makes a place to work in. Names here begin with kit_, since `local` hides a variable of the job that has the same name.

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/program.sh"

# container::begin NAME=VALUE... [-- COMMAND...] - prepares this shell for a rank. With a COMMAND it becomes that command: `kit exec`.
container::begin() {
  export KIT_RUN_DIR
  container::take "$@" # env.sh reads the number of an array's task
  # shellcheck source=/dev/null
  source "${KIT_RUN_DIR}/env.sh"
  container::take "$@" # they win over env.sh
  if [[ -n "${KIT_PACKAGES:-}" ]]; then
    source "${KIT_RUN_DIR}/lib/packages.sh"
    packages::choose_folder
  fi
  if [[ -n "${KIT_IS_SET_UP:-}" ]]; then
    source "${KIT_RUN_DIR}/lib/setup.sh"
    setup::go_on
    container::check_fabric
    return
  fi
  event::now
  export KIT_ENTERED="${KIT_NOW}"
  [[ -z "${KIT_SHARE:-}" ]] || export KIT_SHARE # for what starts a rank
  if [[ -n "${KIT_SECRETS:-}" ]]; then
    export KIT_SECRETS # their names, for what starts a rank
    source "${KIT_RUN_DIR}/lib/secrets.sh"
    secrets::check_inside
  fi
  # The image is the same on all nodes, so one process reports it.
  if [[ "${NODE_RANK}${SLURM_LOCALID:-0}" == 00 && -z "${KIT_INSTEAD[*]:-}" ]]; then
    container::report_overridden
    container::report_lost ''
  fi
  container::check_gpus "$@"
  container::allow_connections
  container::set_variables
  [[ "${KIT_RUNTIME}" == none ]] || container::set_user
  cd -- "${KIT_WORKDIR}" || container::lack_workdir
  ((${#KIT_INSTEAD[@]} == 0)) || container::become "${KIT_INSTEAD[@]}"
  if [[ -e "${KIT_RUN_DIR}/setup.sh" ]]; then
    source "${KIT_RUN_DIR}/lib/setup.sh"
    setup::run
  fi
  container::check_fabric
}

container::lack_workdir() {
  local kit_where='in the container' kit_fix="add it to the job's mounts"
  [[ "${KIT_RUNTIME}" != none ]] || kit_where='on this node' kit_fix='it must be on a file system that every node sees'
  kit::die "the working directory ${KIT_WORKDIR} is not ${kit_where}" "${kit_fix}" workdir-missing
}

# container::check_fabric - once a node, with the job's own variables, and what its setup has made of them.
container::check_fabric() {
  [[ -n "${KIT_FABRIC:-}" && "${SLURM_LOCALID:-0}" == 0 ]] || return 0
  source "${KIT_RUN_DIR}/lib/fabric.sh"
  (container::job_env && fabric::check '')
}

# container::take NAME=VALUE... [-- COMMAND...] - sets KIT_INSTEAD to the COMMAND, which runs instead of the ranks.
container::take() {
  while (($#)) && [[ "$1" != -- ]]; do
    export "${1?}"
    shift
  done
  KIT_INSTEAD=("${@:2}")
}

# container::become COMMAND... - with the same variables as the ranks have.
container::become() {
  local kit_where='in the container' kit_fix='an image that has it'
  [[ "${KIT_RUNTIME}" != none ]] || kit_where='on this node' kit_fix='install it there'
  # The job's Ray, as long as it runs: `kit exec RUN -- ray status`.
  [[ ! -e "${KIT_LOG_DIR}/.ray-token.${KIT_ATTEMPT}" ]] || kit::if_there ray::set_variables
  container::job_env
  command -v -- "$1" >/dev/null || {
    kit::error "there is no $1 ${kit_where}" "choose another command, or ${kit_fix}"
    exit 127
  }
  [[ -z "${KIT_SECRETS:-}" ]] || secrets::take
  export -n SHELLOPTS BASHOPTS # as for a rank
  exec "$@"
}

# container::check_gpus NAME=VALUE... - of what starts ranks: a command of `kit exec` may be there to look for the GPUs. Programs that
# would rather end than train on a CPU learn how many there are to be; not in a rehearsal without a GPU, of which `kit run` has warned.
container::check_gpus() {
  ((KIT_GPUS_PER_NODE > 0)) && [[ -z "${KIT_INSTEAD[*]:-}" ]] || return 0
  if [[ -z "${KIT_LOOPBACK:-}" ]]; then
    source "${KIT_RUN_DIR}/lib/gpus.sh"
    gpus::check "$@"
  elif [[ -z "${CUDA_VISIBLE_DEVICES-all}" || "${HIP_VISIBLE_DEVICES-all}" == @(|-1) ]] || { ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [[ ! -e /dev/dxg && ! -e /dev/kfd ]]; }; then
    return 0
  fi
  export KIT_GPUS_PER_NODE
}

# container::allow_connections - torch's store on the first node, in torchrun or in rank 0, holds a connection or two of each rank, and each
# is an open file. A shell's usual limit is 1,024, which Slurm hands on from where the job was submitted. Ranks that are not let in
# wait for ten minutes or more, and then say that their connection has timed out.
container::allow_connections() {
  local -ri kit_ranks="$((NNODES * NPROC_PER_NODE))"
  [[ "${NODE_RANK:-0}${SLURM_LOCALID:-0}" == 00 && -z "${KIT_INSTEAD[*]:-}" && "$(ulimit -Sn)" != unlimited ]] && (($(ulimit -Sn) < 4 * kit_ranks)) || return 0
  ulimit -Sn "$((4 * kit_ranks))" 2>/dev/null || ulimit -Sn "$(ulimit -Hn)" || true
  (($(ulimit -Sn) > kit_ranks)) ||
    kit::warn "only $(ulimit -Sn) files may be open here, and each of ${kit_ranks} ranks will connect to this node: some may wait in vain" \
      "raise the hard limit (ulimit -Hn) to 131072: of jobs, by LimitNOFILE of slurmd"
}

# container::report_overridden - the job's variables that the image, or a hook of the site, sets to something else. The job's
# values hold; but who set them may want to know what they displace.
container::report_overridden() {
  local kit_pair kit_name kit_own kit_other
  for kit_pair in "${KIT_ENV[@]}"; do
    kit_name="${kit_pair%%=*}"
    [[ -n "${!kit_name+set}" && "${!kit_name}" != "${kit_pair#*=}" ]] || continue
    [[ "${kit_name}" != @(CUDA_VISIBLE_DEVICES|GLOO_SOCKET_IFNAME|NCCL_HOSTID) || -z "${KIT_LOOPBACK:-}" ]] || continue # `kit run` says that
    printf -v kit_own '%q' "${kit_pair#*=}"
    printf -v kit_other '%q' "${!kit_name}"
    # The words of kit/base/redact.py; Turkish has another capital i.
    [[ ! "$(LC_ALL=C && printf '%s' "${kit_name^^}")" =~ TOKEN|SECRET|PASS|KEY|PWD|CRED|COOKIE|AUTH|DSN|CONNECTION_?STRING ]] || kit_own='(not shown)' kit_other='another value'
    kit::say "${kit_name} is ${kit_own} as the job says, not ${kit_other} as the image or the site says"
  done
}

# container::report_lost ROOT - an image of `enroot import` has its variables where Apptainer does not look: it starts without them.
container::report_lost() {
  [[ "${KIT_RUNTIME}" == @(apptainer|singularity) && -s "$1/etc/environment" && -e "$1/etc/rc" ]] || return 0
  compgen -G "$1/.singularity.d/env/10-*" >/dev/null ||
    kit::warn "the image's variables, such as its PATH, are not set: ${KIT_RUNTIME} does not read /etc/environment" "make a file of it that has them for ${KIT_RUNTIME}, too: kit build ${KIT_IMAGE}"
}

# container::job_env - called last, so that neither the image nor a launcher wins over the job's own variables. KIT_PATH is
# the container's own PATH, on which the tools of these scripts are: the job's may lead to nothing but the program.
container::job_env() {
  export KIT_PATH="${KIT_PATH:-${PATH}}" # known already where the job's setup has changed it
  local -r kit_share="${CUDA_VISIBLE_DEVICES:-}"
  ((${#KIT_ENV[@]} == 0)) || export "${KIT_ENV[@]}"
  # Under `kit run` the stand-in for srun has divided the GPUs that the job names among its nodes.
  [[ -z "${KIT_LOOPBACK:-}" || -z "${kit_share}" || -z "${CUDA_VISIBLE_DEVICES:-}" ]] || export CUDA_VISIBLE_DEVICES="${kit_share}"
  [[ -z "${KIT_PACKAGES:-}" ]] || packages::add
}

# container::set_variables - what programs are told besides the job's own variables.
container::set_variables() {
  # enroot's PyTorch hook fills these in from Slurm's task count, which is the number of nodes here.
  unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE KIT_CHECKPOINT_FILE
  export PYTHONUNBUFFERED=1
  # A setproctitle would overwrite the environment that /proc shows of a rank, by which kit finds it: see pulse.sh and stacks.sh.
  export SPT_NOENV="${SPT_NOENV:-1}"
  # docs/preemption.md says what a program does with these.
  [[ "${KIT_ON_PREEMPT}" == none && "${KIT_MAX_RESTARTS}" == 0 && -z "${KIT_STALL_S:-}" ]] || export KIT_PROGRESS="${KIT_LOG_DIR}/progress"
  [[ "${KIT_ON_PREEMPT}" != checkpoint ]] || export KIT_CHECKPOINT_FILE="${KIT_LOG_DIR}/checkpoint.${KIT_ATTEMPT}"
  # torchrun, since torch 2.12, would kill ranks that it has told to stop after 30 s; Slurm itself knows when their time is over.
  [[ "${KIT_ON_PREEMPT}" == none ]] || export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-3600}"
  # Where PyTorch's flight recorder writes what NCCL's ranks were at when one did not end: its name since 2.9, and before.
  export TORCH_FR_DUMP_TEMP_FILE="${TORCH_FR_DUMP_TEMP_FILE:-${KIT_LOG_DIR}/flight.${KIT_ATTEMPT}.}" TORCH_NCCL_DUMP_ON_TIMEOUT="${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}"
  export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-${TORCH_FR_DUMP_TEMP_FILE}}"
  [[ -z "${KIT_PACKAGES:-}" ]] || export PYTHONPATH="${KIT_PACKAGES_FOLDER}${PYTHONPATH:+:${PYTHONPATH}}" PATH="${KIT_PACKAGES_FOLDER}/bin:${PATH}"
  # The code as it was at submission comes before what is installed of the same name. A PYTHONPATH of the job's own, which
  # replaces this one, begins with it, too.
  [[ -z "${KIT_CODE:-}" ]] || export KIT_CODE PYTHONPATH="${KIT_CODE}${PYTHONPATH:+:${PYTHONPATH}}"
  if [[ -n "${KIT_CACHE:-}" ]]; then
    source "${KIT_RUN_DIR}/lib/cache.sh"
    cache::set_variables
  fi
  # torchrun would set one thread per rank and leave the other CPUs idle; so would Enroot's PyTorch hook where a node has
  # several tasks, unless the image names a number itself.
  local -i kit_cpus="${SLURM_CPUS_ON_NODE:-$(nproc)}"
  if [[ "${KIT_RUNTIME}" == @(enroot|pyxis) && -n "${PYTORCH_VERSION:-}" && "${OMP_NUM_THREADS:-}" == 1 ]] && ((KIT_TASKS_PER_NODE > 1)); then
    grep -qs '^OMP_NUM_THREADS=' /etc/environment || unset OMP_NUM_THREADS
  fi
  [[ -z "${SLURM_CPUS_PER_TASK:-}" ]] || kit_cpus=$((SLURM_CPUS_PER_TASK * KIT_TASKS_PER_NODE))
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((kit_cpus > NPROC_PER_NODE ? kit_cpus / NPROC_PER_NODE : 1))}"
}

# container::set_user - the image may not know this user, nor have the user's home.
container::set_user() {
  export USER="${USER:-$(id -un 2>/dev/null || id -u)}" # PyTorch asks for it
  export PYTHONNOUSERSITE=1                             # packages in ~/.local would shadow the image's
  [[ ! -w "${HOME:-/nonexistent}" ]] || return 0
  export HOME="/tmp/kit-home-${KIT_UID:-${UID}}" # for caches; root of a container has the user's number outside
  [[ -d "${HOME}" ]] || (umask 077 && mkdir -p -- "${HOME}") ||
    kit::die "cannot make ${HOME}, in place of a home that is not writable" "mount a writable folder as /tmp: \`mounts: [/local:/tmp]\`"
  # /tmp may be the host's, and code is loaded from these caches.
  [[ -O "${HOME}" && ! -L "${HOME}" ]] || kit::die "${HOME} belongs to somebody else" "have it removed"
}
