# host_setup.sh - the job's lines of bash for its nodes, such as `module load`. As at the head of a batch script they run once,
# on the first node, and what they export reaches the others with srun. They run in a shell of their own, in which they can break
# none of these scripts; run_script.sh then starts again in the place of that shell. They see the job's variables, and no secrets.
# only: host_setup.sh

# host_setup::run WORD... - the words of run_script.sh.
host_setup::run() {
  case "${1:-batch}" in
    batch | again | shell | jupyter) ;;
    attach) host_setup::bring ;;
    *) return 0 ;; # srun has started this, with what they exported
  esac
  if [[ -n "${KIT_HOST_IS_SET_UP:-}" ]]; then
    [[ "${KIT_HOST_IS_SET_UP}" != yes ]] || host_setup::take_back
    unset KIT_HOST_IS_SET_UP KIT_EVENTS
    export -n KIT_SIGNAL KIT_NEAR_END KIT_HOST_PROBLEM KIT_HOST_FIX
    # What is exported now is theirs; and where Slurm starts the container, what they say of the fabric goes along with srun.
    # shellcheck disable=SC2329  # job::main and the runtimes call these
    environment::forget_shell() { :; }
    # shellcheck disable=SC2329  # likewise
    environment::forget_host() {
      environment::forget_functions
      environment::keep 'PS1|debian_chroot|NCCL_*|RCCL_*|UCX_*|FI_*|GLOO_*|SLINGSHOT_*'
    }
    return
  fi
  environment::forget_shell
  [[ -z "${SLURM_JOB_ID:-}" ]] || event::begin # job::begin says what is wrong without it
  # As a batch script begins where it was submitted; a folder that only the image has is not here.
  cd -- "${KIT_WORKDIR}" 2>/dev/null || true
  host_setup::lend
  export KIT_SIGNAL KIT_NEAR_END
  exec "${BASH}" "${KIT_RUN_DIR}/lib/own_lines.sh" host_setup "${BASH}" "${KIT_RUN_DIR}/run_script.sh" "$@"
}

# host_setup::conclude - when the job has begun: ends it where the lines have failed, or Slurm wants it to end; else keeps what they exported.
host_setup::conclude() {
  local facts=''
  if [[ -n "${KIT_HOST_PROBLEM:-}" && -z "${KIT_SIGNAL}" ]]; then
    if [[ -n "${KIT_NEAR_END}" ]]; then # the signal may have ended a line that waited
      preempt::begin
      preempt::go_on "the time limit is near"
    fi
    # Who ends a job tells each of its processes, and a line that has lost its command may have ended with any code.
    [[ -n "${KIT_LOOPBACK:-}" ]] || facts="$(ending::facts)"
    [[ "${facts}" != *' JobState='* || "${facts}" == *' JobState=RUNNING '* ]] || KIT_SIGNAL=TERM
  fi
  ending::heed_early_signal
  [[ -z "${KIT_HOST_PROBLEM:-}" ]] || kit::die "${KIT_HOST_PROBLEM}" "${KIT_HOST_FIX}" setup-failed
  [[ -n "${KIT_IS_AGAIN:-}" ]] || host_setup::keep
}

# host_setup::file - prints where that is: kit removes this folder with what the scripts of an ended run have left in it.
host_setup::file() { printf '%s/.secrets/host.%s' "${KIT_RUN_DIR}" "${KIT_ID}"; }

# host_setup::keep - keeps what is exported now for `kit exec`, which has to find the node's tools as the job does. Keys of the user's
# may be among it: the file is the owner's alone, and goes with the job.
host_setup::keep() (
  set +vx
  umask 077
  kit_file="$(host_setup::file)"
  if mkdir -p -- "${kit_file%/*}" && printf '*\n' >"${kit_file%/*}/.gitignore" && host_setup::exported >"${kit_file}"; then return; fi
  rm -f -- "${kit_file}"
  kit::say "\`kit exec\` does without what host_setup has exported"
)

# host_setup::exported - prints it, as bash. Slurm and kit tell each step its own, and the terminal is that of the caller.
host_setup::exported() {
  local kit_name
  while IFS= read -r kit_name; do
    case "${kit_name}" in
      SLURM* | _SLURM_* | SPANK_* | SBATCH_* | SRUN_* | KIT_* | CUDA_VISIBLE_DEVICES | ROCR_VISIBLE_DEVICES | HIP_VISIBLE_DEVICES | GPU_DEVICE_ORDINAL | ZE_AFFINITY_MASK) ;;
      PWD | OLDPWD | SHLVL | HOSTNAME | TERM | XDG_* | DBUS_* | KRB5CCNAME | _) ;;
      SHELLOPTS | BASHOPTS | UID | EUID | PPID) ;; # read-only
      *) printf 'export %s=%q\n' "${kit_name}" "${!kit_name}" || return ;;
    esac
  done < <(compgen -e)
  while read -r _ _ kit_name; do
    declare -f "${kit_name}" && printf 'export -f %s\n' "${kit_name}" || return
  done < <(declare -Fx)
}

# host_setup::bring - takes it, for `kit exec`, wherever that was called.
host_setup::bring() {
  local kit_path="${PATH}" kit_file
  environment::forget_shell
  event::name_job
  kit_file="$(host_setup::file)"
  # shellcheck source=/dev/null
  [[ ! -r "${kit_file}" ]] || source "${kit_file}"
  PATH+=":${kit_path}" # srun may have another place here
  KIT_HOST_IS_SET_UP=kept
}

# host_setup::forget - at the job's end. Another task of an array may be about to write a file there.
host_setup::forget() {
  local -r folder="${KIT_RUN_DIR}/.secrets"
  source "${KIT_RUN_DIR}/lib/remove.sh"
  rm -f -- "$(host_setup::file)" || true
  [[ ! -d "${folder}" || -n "${SLURM_ARRAY_TASK_ID:-}" || -n "$(cd -- "${folder}" && compgen -G '*')" ]] || remove::tree "${folder}" '\.secrets' || true
}

# host_setup::choose - those of the job's variables that the lines get. What finds and loads programs stays the node's own, and
# with an image its folders, too: the job's may exist in the image alone.
host_setup::choose() {
  local kit_kept='PATH|LD_*|PYTHON*|BASH*' kit_pair
  [[ -z "${KIT_IMAGE}" ]] || kit_kept+='|HOME|TMPDIR'
  for kit_pair in "${KIT_ENV[@]}"; do
    # shellcheck disable=SC2053  # the right side is a pattern
    [[ "${kit_pair%%=*}" == @(${kit_kept}) ]] || kit_lent+=("${kit_pair}")
  done
}

# host_setup::lend - exports them, and keeps what the node has of these names.
host_setup::lend() {
  local -a kit_lent=()
  local kit_pair kit_name
  host_setup::choose
  for kit_pair in "${kit_lent[@]}"; do
    kit_name="${kit_pair%%=*}"
    [[ -z "${!kit_name+set}" ]] || export "KIT_NODES_${kit_name}=${!kit_name}"
    export "${kit_pair?}"
  done
}

# host_setup::take_back - behind the lines: kit's own scripts and tools go on with what the node has, or the lines have changed.
host_setup::take_back() {
  local -a kit_lent=()
  local kit_pair kit_name kit_before
  host_setup::choose
  for kit_pair in "${kit_lent[@]}"; do
    kit_name="${kit_pair%%=*}" kit_before="KIT_NODES_${kit_pair%%=*}"
    if [[ "${!kit_name:-}" == "${kit_pair#*=}" ]]; then
      unset "${kit_name}"
      [[ -z "${!kit_before+set}" ]] || export "${kit_name}=${!kit_before}"
    fi
    unset "${kit_before}"
  done
}
