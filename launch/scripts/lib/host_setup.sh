# shellcheck shell=bash
# host_setup.sh - the job's lines of bash for its nodes, such as `module load`. As at the head of a batch script they run once,
# on the first node, and what they export reaches the others with srun. They run in a shell of their own, in which they can break
# none of these scripts; run_script.sh then starts again in the place of that shell.
# only: host_setup

# host_setup::run WORD... - the words of run_script.sh.
host_setup::run() {
  case "${1:-batch}" in
    batch | attach | shell | jupyter) ;;
    *) return 0 ;; # srun has started this, with what they exported
  esac
  if [[ -n "${KIT_HOST_IS_SET_UP:-}" ]]; then
    unset KIT_HOST_IS_SET_UP KIT_EVENTS
    # What is exported now is theirs; and where Slurm starts the container, what they say of the fabric goes along with srun.
    # shellcheck disable=SC2329  # job::main and the runtimes call these
    environment::forget_shell() { :; }
    # shellcheck disable=SC2329  # likewise
    environment::forget_host() { environment::keep 'PS1|NCCL_*|RCCL_*|UCX_*|FI_*|GLOO_*|SLINGSHOT_*'; }
    return
  fi
  environment::forget_shell
  [[ -z "${SLURM_JOB_ID:-}" ]] || event::begin # job::begin says what is wrong without it
  # As a batch script begins where it was submitted; a folder that only the image has is not here.
  cd -- "${KIT_WORKDIR}" 2>/dev/null || true
  export KIT_HOST_IS_SET_UP=yes KIT_EVENTS="${KIT_EVENTS:-}"
  exec "${BASH}" "${KIT_RUN_DIR}/lib/own_lines.sh" host_setup "${BASH}" "${KIT_RUN_DIR}/run_script.sh" "$@"
}
