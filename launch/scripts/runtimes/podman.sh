# runtimes/podman.sh - for `kit run` on a machine with Podman, as any user. Not for a cluster, whose nodes would each need
# the image in their own storage.
# images: docker://
# tool: podman
# auto: 2
# where: local

source "${KIT_RUN_DIR}/lib/oci.sh"

runtime::check() {
  command -v podman >/dev/null || kit::die "podman is not installed here" "install it, or use another runtime" runtime-missing
}

runtime::prepare() { oci::prepare podman; }

runtime::exec() {
  oci::choose_options "$1"
  # In a user namespace, the user's own number must be the same inside, or files in the mounts would be another's.
  if ((UID != 0)); then
    KIT_OCI_OPTIONS+=(--userns keep-id)
    [[ ! -e /dev/kfd ]] || KIT_OCI_OPTIONS+=(--group-add keep-groups) # AMD's GPUs are for one of the user's groups
  fi
  [[ -z "${KIT_REMAP_ROOT}" ]] || KIT_OCI_OPTIONS+=(--userns host --user 0:0)
  # Podman's way to GPUs is the list that `nvidia-ctk cdi generate` writes.
  ! oci::shows_gpus || KIT_OCI_OPTIONS+=(--device nvidia.com/gpu=all)
  # It would hand proxies on.
  # shellcheck disable=SC2034  # environment.sh reads it
  KIT_RUNTIME_READS="${KIT_PULLS}"
  environment::keep
  exec podman run "${KIT_OCI_OPTIONS[@]}" "${KIT_IMAGE#docker://}" "${@:2}"
}

runtime::enter() { oci::enter podman "$@"; }
runtime::works() { oci::works podman; }
runtime::bare_shell() { oci::bare_shell podman; }
