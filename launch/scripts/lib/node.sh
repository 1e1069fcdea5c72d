# node.sh - what a node hands on to its ranks.

source "${KIT_RUN_DIR}/lib/interface.sh"
[[ -z "${KIT_HEALTH:-}" ]] || source "${KIT_RUN_DIR}/lib/health.sh"
[[ -z "${KIT_PACKAGES:-}" ]] || { source "${KIT_RUN_DIR}/lib/packages.sh" && packages::mount; }

((KIT_GPUS_PER_NODE == 0)) || { source "${KIT_RUN_DIR}/lib/fabric.sh" && source "${KIT_RUN_DIR}/lib/gpus.sh"; }

# node::begin - comes first on a node, where srun has started the script.
node::begin() {
  [[ -n "${KIT_LOG_DIR:-}" && -n "${SLURM_NODEID:-}" ]] ||
    kit::die "this part of run_script.sh is started by srun" "submit with: sbatch run_script.sh"
  export KIT_EVENTS="${KIT_LOG_DIR}/events/${SLURMD_NODENAME:-${HOSTNAME}}.jsonl"
  [[ -z "${KIT_UMASK:-}" ]] || share::restore_umask
}

# node::describe [ROOT] - sets KIT_MACHINE to what results may depend on: this node's kernel, the driver and the models of its GPUs.
node::describe() {
  local file word
  KIT_MACHINE=''
  for file in "${1:-}"/proc/sys/kernel/osrelease "${1:-}"/sys/module/{nvidia,amdgpu}/version "${1:-}"/proc/driver/nvidia/gpus/*/information; do
    { read -r word <"${file}"; } 2>/dev/null || continue
    case "${file}" in
      */osrelease) word="Linux ${word}" ;;
      */nvidia/version) word="NVIDIA ${word}" ;;
      */amdgpu/version) word="amdgpu ${word}" ;;
      *) word="${word#Model:}" && word="${word#"${word%%[![:space:]]*}"}" ;;
    esac
    [[ ", ${KIT_MACHINE}," == *", ${word},"* ]] || KIT_MACHINE+="${KIT_MACHINE:+, }${word}"
  done
}

# node::bring_mounts - makes what kit itself mounts on this node, and checks that everything that the job mounts is here.
node::bring_mounts() {
  [[ -z "${KIT_CACHE:-}" ]] || cache::prepare
  [[ -z "${KIT_PACKAGES:-}" ]] || packages::prepare
  ((${#KIT_MOUNTS[@]} > 0)) || return 0
  source "${KIT_RUN_DIR}/lib/mounts.sh"
  mounts::check
}

# node::bring_container - makes the container, and starts it where only that shows whether this node can mount the job's data; describes
# the node then, when the driver is loaded.
node::bring_container() {
  ((KIT_GPUS_PER_NODE == 0)) || gpus::bring_memory
  runtime::check
  runtime::prepare
  kit::if_there mounts::try_data
  node::describe
}

# node::collect_facts - sets KIT_NODE_FACTS. A container may start from an empty environment or from its image's, so what
# belongs to this start, and what the node says of its fabric, travels as arguments, which every runtime hands on as they are.
# Adds the mounts that these need.
node::collect_facts() {
  local kit_name
  KIT_NODE_FACTS=()
  interface::choose
  unset KIT_FABRIC # that of a job which started this one
  ((KIT_GPUS_PER_NODE == 0 || NNODES == 1)) || fabric::look ''
  [[ -z "${KIT_CACHE:-}" ]] || cache::use
  KIT_UID="${UID}"
  unset SLURM_JWT # a secret, which process lists would show
  for kit_name in NODE_RANK NNODES MASTER_ADDR MASTER_PORT KIT_LOG_DIR KIT_ATTEMPT KIT_ATTEMPT_DIR KIT_RENDEZVOUS_ID KIT_ADDRESSES KIT_LOOPBACK KIT_EVENTS KIT_BEGUN KIT_CACHE_DIR KIT_FABRIC KIT_UID USER \
    "${!SLURM_@}" "${!SLURMD_@}" "${!PMIX_@}" "${!PMI_@}" "${!PALS_@}" "${!OMPI_@}" CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK \
    "${!NCCL_@}" "${!RCCL_@}" "${!UCX_@}" "${!FI_@}" "${!GLOO_@}" "${!CUDA_MPS_@}" "${!SLINGSHOT_@}" TP_SOCKET_IFNAME; do
    [[ -z "${!kit_name+set}" ]] || KIT_NODE_FACTS+=("${kit_name}=${!kit_name}")
  done
  # What they name on this node: where Slurm's PMIx listens, and the MPS daemon; how the GPUs are connected.
  for kit_name in PMIX_SERVER_TMPDIR CUDA_MPS_PIPE_DIRECTORY NCCL_TOPO_FILE; do
    [[ -z "${!kit_name:-}" || ! -e "${!kit_name}" ]] || KIT_MOUNTS+=("${!kit_name}" "${!kit_name}" rw)
  done
  node::mount_tmpdir
}

# node::mount_tmpdir - mounts the folder that some sites make for a job on each node, unless that would hide what is mounted there.
# /tmp is left as it is: every container has one.
node::mount_tmpdir() {
  local -r place="${SLURM_TMPDIR:-/tmp}"
  local -i i
  [[ "${place%/}" != /tmp && -d "${place}" ]] || return 0
  for ((i = 1; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    [[ "${KIT_MOUNTS[i]%/}/" != "${place%/}"/* ]] || return 0
  done
  KIT_MOUNTS+=("${place}" "${place}" rw)
}
