# shellcheck shell=bash
# runtimes/docker.sh - for `kit run` on a machine with a Docker Engine. Not for a cluster: the engine would start the
# container outside the job, where Slurm neither limits nor ends it.
# images: docker://
# where: local

runtime::check() {
  command -v docker >/dev/null || kit::die "docker is not installed here" "install it, or use another runtime"
  local problem
  problem="$(docker info 2>&1 >/dev/null)" || kit::die "no Docker Engine answers: ${problem##*$'\n'}" "start it, or join the group docker: docker info"
}

runtime::prepare() {
  docker image inspect "${KIT_IMAGE#docker://}" >/dev/null 2>&1 || docker pull "${KIT_IMAGE#docker://}" >&2 ||
    kit::die "there is no image ${KIT_IMAGE}, and it cannot be pulled" "see the lines above; docker images shows what is there"
}

runtime::exec() {
  local -a kit_args=(
    --rm
    --init # reaps, and hands signals on
    --network host
    --ipc host # ranks and loaders share memory; Docker's own /dev/shm has 64 MB
    --ulimit stack=67108864
    --user "$(id -u):$(id -g)" # files in the mounts stay the user's
    --name "kit-${SLURM_JOB_ID}-${NODE_RANK}"
    --entrypoint "$1"
  )
  # Of all GPUs, CUDA_VISIBLE_DEVICES, set inside, names this node's. NCCL pins memory for them.
  [[ ! -e /dev/nvidiactl ]] || kit_args+=(--gpus all --ulimit memlock=-1)
  [[ -z "${KIT_REMAP_ROOT}" ]] || kit_args+=(--user 0:0)
  local -i kit_i
  local kit_mount
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    # A line of CSV, as for Apptainer: quoted fields keep commas and spaces; a quote is doubled.
    kit_mount="type=bind,\"source=${KIT_MOUNTS[kit_i]//\"/\"\"}\",\"target=${KIT_MOUNTS[kit_i + 1]//\"/\"\"}\""
    [[ "${KIT_MOUNTS[kit_i + 2]}" != ro ]] || kit_mount+=",readonly"
    kit_args+=(--mount "${kit_mount}")
  done
  exec docker run "${kit_args[@]}" "${KIT_IMAGE#docker://}" "${@:2}"
}
