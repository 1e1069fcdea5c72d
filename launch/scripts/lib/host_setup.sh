# host_setup.sh - the job's lines of bash for its nodes, such as `module load`. As at the head of a batch script they run once,
# on the first node, and what they export reaches the others with srun. They run in a shell of their own, in which they can break
# none of these scripts; run_script.sh then starts again in the place of that shell. They see the job's variables, and no secrets.
# only: host_setup.sh

# host_setup::run WORD... - the words of run_script.sh.
host_setup::run() {
  case "${1:-batch}" in
    batch | again | attach | shell | jupyter) ;;
    *) return 0 ;; # srun has started this, with what they exported
  esac
  if [[ -n "${KIT_HOST_IS_SET_UP:-}" ]]; then
    [[ "${KIT_HOST_IS_SET_UP}" == again ]] || host_setup::take_back
    unset KIT_HOST_IS_SET_UP KIT_EVENTS
    # What is exported now is theirs; and where Slurm starts the container, what they say of the fabric goes along with srun.
    # shellcheck disable=SC2329  # job::main and the runtimes call these
    environment::forget_shell() { :; }
    # shellcheck disable=SC2329  # likewise
    environment::forget_host() {
      environment::forget_functions
      environment::keep 'PS1|NCCL_*|RCCL_*|UCX_*|FI_*|GLOO_*|SLINGSHOT_*'
    }
    return
  fi
  environment::forget_shell
  [[ -z "${SLURM_JOB_ID:-}" ]] || event::begin # job::begin says what is wrong without it
  # As a batch script begins where it was submitted; a folder that only the image has is not here.
  cd -- "${KIT_WORKDIR}" 2>/dev/null || true
  host_setup::lend
  export KIT_HOST_IS_SET_UP=yes KIT_EVENTS="${KIT_EVENTS:-}"
  exec "${BASH}" "${KIT_RUN_DIR}/lib/own_lines.sh" host_setup "${BASH}" "${KIT_RUN_DIR}/run_script.sh" "$@"
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
