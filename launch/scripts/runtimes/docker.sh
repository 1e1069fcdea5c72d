# runtimes/docker.sh - for `kit run` on a machine with a Docker Engine. Not for a cluster: the engine would start the
# container outside the job, where Slurm neither limits nor ends it.
# images: docker://
# tool: docker
# is-not: podman
# auto: 1
# where: local

KIT_TOOL=docker
source "${KIT_RUN_DIR}/lib/oci.sh"

runtime::check() {
  command -v docker >/dev/null || kit::die "docker is not installed here" "install it, or use another runtime" runtime-missing
  local problem another=''
  ! command -v podman >/dev/null || another='; or run in Podman: --runtime podman'
  problem="$(docker info 2>&1 >/dev/null)" ||
    kit::die "no Docker Engine answers: ${problem##*$'\n'}" "start it, or join the group docker: docker info${another}" runtime-missing
  # As the package podman-docker installs it: what follows is for Docker.
  [[ "$(docker --version 2>/dev/null)" != podman* ]] || kit::die "docker is another name of Podman here" "name Podman itself: --runtime podman" runtime-missing
}

runtime::exec() {
  oci::choose_options "$1"
  KIT_OCI_OPTIONS+=(
    --init # reaps, and hands signals on
    --ulimit stack=67108864
  )
  # Of all GPUs, CUDA_VISIBLE_DEVICES, set inside, names this node's.
  ! oci::shows_gpus || KIT_OCI_OPTIONS+=(--gpus all)
  docker::add_user
  [[ -z "${KIT_REMAP_ROOT}" ]] || KIT_OCI_OPTIONS+=(--user 0:0)
  exec docker run "${KIT_OCI_OPTIONS[@]}" "${KIT_IMAGE#docker://}" "${@:2}"
}

# docker::add_user - files in the mounts stay the user's. The engine says how it maps numbers.
docker::add_user() {
  local kit_security
  kit_security="$(docker info --format '{{.SecurityOptions}}' 2>/dev/null)" || true
  if [[ "${kit_security}" == *name=rootless* ]]; then
    KIT_OCI_OPTIONS+=(--user 0:0) # the user outside, who can hand on no groups and raise no limits
    return
  fi
  KIT_OCI_OPTIONS+=(--user "$(id -u):$(id -g)")
  [[ "${kit_security}" != *name=userns* ]] || KIT_OCI_OPTIONS+=(--userns host)
  docker::add_groups
  ! oci::shows_gpus || KIT_OCI_OPTIONS+=(--ulimit memlock=-1) # NCCL pins memory for them
}

# docker::add_groups - --user leaves all groups out: the user's, by which data may be readable, and that of AMD's GPUs.
docker::add_groups() {
  local kit_group
  for kit_group in $(id -G); do KIT_OCI_OPTIONS+=(--group-add "${kit_group}"); done
  [[ -e /dev/kfd ]] || return 0
  while read -r kit_group; do ((kit_group == 0)) || KIT_OCI_OPTIONS+=(--group-add "${kit_group}"); done < <(stat -c %g -- /dev/kfd /dev/dri/renderD* 2>/dev/null | sort -nu)
}
