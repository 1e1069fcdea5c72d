# runtimes/podman.sh - for `kit run` on a machine with Podman, as any user. Not for a cluster, whose nodes would each need
# the image in their own storage.
# images: docker://
# tool: podman
# auto: 2
# where: local

KIT_TOOL=podman
source "${KIT_RUN_DIR}/lib/oci.sh"

runtime::check() {
  command -v podman >/dev/null || kit::die "podman is not installed here" "install it, or use another runtime" runtime-missing
}

runtime::exec() {
  oci::choose_options "$1"
  # In a user namespace, the user's own number must be the same inside, or files in the mounts would be another's.
  if ((UID != 0)); then
    # One of the user's groups may be what data, or AMD's GPUs, are for. This is what `--group-add keep-groups` sets, but Podman before 3.2
    # does not know that, nor does one that calls a service. crun keeps the groups; runc cannot.
    KIT_OCI_OPTIONS+=(--userns keep-id --annotation run.oci.keep_original_groups=1)
  fi
  [[ -z "${KIT_REMAP_ROOT}" ]] || KIT_OCI_OPTIONS+=(--userns host --user 0:0)
  # Podman's way to GPUs is the list that `nvidia-ctk cdi generate` writes.
  ! oci::shows_gpus || KIT_OCI_OPTIONS+=(--device nvidia.com/gpu=all)
  # It would hand proxies on.
  KIT_RUNTIME_READS="${KIT_PULLS}"
  environment::keep
  exec podman run "${KIT_OCI_OPTIONS[@]}" "${KIT_IMAGE#docker://}" "${@:2}"
}
