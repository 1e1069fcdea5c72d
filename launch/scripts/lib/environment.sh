# environment.sh - which variables of the host reach the ranks. See docs/environment.md.

# environment::forget_other_job - drops what the job whose program started this one has told its ranks. What stays: this script's own
# variables, KIT_LOOPBACK, by which `kit run` says that there is no Slurm, and the time limits that tests set; not those of a job's keys.
environment::forget_other_job() {
  local kit_name
  for kit_name in "${!KIT_@}"; do
    [[ "${kit_name}" == @(KIT_RUN_DIR|KIT_LOOPBACK|KIT_SIGNAL|KIT_NEAR_END|KIT_TEST_*|KIT_*_S) && "${kit_name}" != KIT_@(STALL|CHECKPOINT)_S ]] || unset "${kit_name}"
  done
}

# environment::choose_cluster VERB - a job asks the cluster of its nodes' slurm.conf, whatever clusters its submitter's shell named: scontrol refuses
# a list of them, and for one name it needs slurmdbd. `kit exec` is for jobs of this cluster alone. `kit shell` runs where it was typed, and names
# its job's cluster.
environment::choose_cluster() {
  case "$1" in
    batch | again | attach) unset SLURM_CLUSTERS SBATCH_CLUSTERS ;;
    shell | jupyter)
      [[ "${SLURM_CLUSTERS:-}" == @(all|*,*) ]] || grep -q '^#SBATCH --clusters=' -- "${KIT_RUN_DIR}/run_script.sh" || return 0
      [[ -z "${SLURM_CLUSTER_NAME:-}" ]] || export SLURM_CLUSTERS="${SLURM_CLUSTER_NAME}"
      ;;
  esac
}

# environment::finds_slurm NAME - whether by that variable Slurm's commands find slurmctld, or show it whose they are: what starts another job,
# or a step that is to have nothing of this allocation, keeps these.
environment::finds_slurm() { [[ "$1" == SLURM_@(CONF|CONF_SERVER|SACK_SOCKET|CLUSTERS|JWT) ]]; }

# environment::forget_shell - drops what the submitting shell happened to hold. The job's own variables are in env.sh, and
# what the nodes set comes with each step.
environment::forget_shell() {
  # Without a container the ranks find their programs by these: modules, venv, conda, MPI.
  local kit_kept='LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV*|CONDA_*|PYENV_*'
  kit_kept+='|MODULE*|LMOD_*|__LMOD_*|LOADEDMODULES|_LMFILES_*|__MODULES_*|_ModuleTable*|BASH*'
  kit_kept+='|OPAL_PREFIX|PMIX_INSTALL_PREFIX|PRTE_PREFIX|I_MPI_ROOT'
  kit_kept+='|LANG|LANGUAGE|LC_*|TZ|TMPDIR|XDG_*|DBUS_*|KRB5CCNAME'
  environment::keep "${kit_kept}"
}

# environment::forget_host - for runtimes that would hand the rest on to the container, where paths into the host's Python
# break that of the image. What the ranks need travels as arguments. PS1 and debian_chroot are those of kit shell.
environment::forget_host() {
  environment::forget_functions
  environment::keep 'PS1|debian_chroot'
}

# environment::forget_functions - no process that is started from here has the host's exported functions, such as the `which` of RHEL,
# which calls the host's program with options that another one does not know.
environment::forget_functions() {
  local kit_name
  while read -r _ _ kit_name; do export -nf "${kit_name?}"; done < <(declare -Fx)
}

# environment::keep [PATTERNS] - drops what is exported, except these, Slurm's and kit's, and what every program needs.
environment::keep() {
  local kit_kept='SLURM*|_SLURM_*|SPANK_*|SBATCH_*|SRUN_*|KIT_*|NNODES|NPROC_PER_NODE'
  kit_kept+='|CUDA_DEVICE_ORDER|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK'
  kit_kept+='|NVIDIA_DRIVER_CAPABILITIES|MELLANOX_VISIBLE_DEVICES'
  kit_kept+='|ENROOT_*|APPTAINER_*|SINGULARITY_*|DOCKER_*|CONTAINERS_*'
  kit_kept+="|PATH|HOME|USER|LOGNAME|SHELL|PWD|HOSTNAME|TERM${KIT_RUNTIME_READS:+|${KIT_RUNTIME_READS}}${1:+|$1}"
  local kit_name
  while IFS= read -r kit_name; do
    # shellcheck disable=SC2053  # the right side is a pattern
    [[ "${kit_name}" != @(${kit_kept}) ]] || continue
    export -n "${kit_name?}"
    # These scripts read some that are bash's own, which it does not make anew. A profile may export them, as that of SLES does.
    [[ "${kit_name}" == @(BASH*|EPOCH*|HOSTTYPE|LINENO|SECONDS|UID) ]] || unset "${kit_name}" 2>/dev/null || true # others are read-only
  done < <(compgen -e)
}
