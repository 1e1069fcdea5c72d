# oci.sh - what Docker and Podman have in common, for `kit run` on one machine. KIT_TOOL is the command.

# What an engine needs to find an image, and to pull one.
KIT_PULLS='REGISTRY_AUTH_FILE|SSL_CERT_*|STORAGE_*|CONTAINER_*|XDG_*|DBUS_*'
KIT_RUNTIME_READS="*_proxy|*_PROXY|${KIT_PULLS}"

source "${KIT_RUN_DIR}/lib/mount_points.sh"

# oci::choose_options ENTRYPOINT - sets KIT_OCI_OPTIONS.
oci::choose_options() {
  local -r kit_name="kit-${SLURM_JOB_ID}-${SLURM_PROCID}"
  [[ -n "${KIT_BESIDE:-}" ]] || ((${KIT_ATTEMPT:-1} == 1)) || oci::remove_earlier "${kit_name}"
  KIT_OCI_OPTIONS=(
    --rm
    --network host
    --ipc host # ranks and loaders share memory; a container's own /dev/shm has 64 MB
    --name "${kit_name}"
    --entrypoint "$1"
  )
  [[ -z "${KIT_BESIDE:-}" ]] || KIT_OCI_OPTIONS+=(--interactive)
  [[ -z "${KIT_BESIDE:-}" || ! -t 0 || ! -t 1 ]] || KIT_OCI_OPTIONS+=(--tty)
  if [[ -e /dev/kfd ]]; then # AMD's GPUs
    KIT_OCI_OPTIONS+=(--device /dev/kfd)
    [[ ! -e /dev/dri ]] || KIT_OCI_OPTIONS+=(--device /dev/dri)
  fi
  local -i kit_i
  local kit_mount
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    # A line of CSV, as for Apptainer: quoted fields keep commas and spaces; a quote is doubled.
    kit_mount="type=bind,\"source=${KIT_MOUNTS[kit_i]//\"/\"\"}\",\"target=${KIT_MOUNTS[kit_i + 1]//\"/\"\"}\""
    [[ "${KIT_MOUNTS[kit_i + 2]}" != ro ]] || kit_mount+=",readonly"
    mount_points::make "${kit_i}"
    KIT_OCI_OPTIONS+=(--mount "${kit_mount}")
  done
}

# oci::remove_earlier NAME - the container of the attempt before, whose client may have been killed: it has the name, and perhaps the GPUs, until
# the engine has removed it.
oci::remove_earlier() {
  local -i kit_tries
  for ((kit_tries = 0; kit_tries < 40; kit_tries++)); do
    "${KIT_TOOL}" container inspect "$1" >/dev/null 2>&1 || return 0
    "${KIT_TOOL}" rm --force "$1" >/dev/null 2>&1 || sleep 0.25
  done
}

# oci::shows_gpus - whether the container gets NVIDIA's GPUs, which WSL has behind /dev/dxg. Where the job or this shell hides them it
# does not: an engine without NVIDIA's toolkit can then start it.
oci::shows_gpus() {
  [[ (-e /dev/nvidiactl || -e /dev/dxg) && -n "${CUDA_VISIBLE_DEVICES-all}" && " ${KIT_ENV[*]} " != *' CUDA_VISIBLE_DEVICES= '* ]]
}

runtime::prepare() {
  "${KIT_TOOL}" image inspect "${KIT_IMAGE#docker://}" >/dev/null 2>&1 || "${KIT_TOOL}" pull "${KIT_IMAGE#docker://}" >&2 ||
    kit::die "there is no image ${KIT_IMAGE}, and it cannot be pulled" "see the lines above; ${KIT_TOOL} images shows what is there" image-missing
}

# Fails where the image is not here yet, but is pulled at the start.
runtime::bare_shell() {
  KIT_SHELL=("${KIT_TOOL}" run --rm --network none --entrypoint bash "${KIT_IMAGE#docker://}")
  "${KIT_TOOL}" image inspect "${KIT_IMAGE#docker://}" >/dev/null 2>&1
}

runtime::works() { ! command -v "${KIT_TOOL}" >/dev/null || timeout 15 "${KIT_TOOL}" info >/dev/null; }

# In the running container of this node's first rank; in a new one where there is none, as under
# `kit shell` on all nodes but that of the shell.
runtime::enter() {
  local -r kit_name="kit-${SLURM_JOB_ID}-${SLURM_PROCID}"
  "${KIT_TOOL}" container inspect "${kit_name}" >/dev/null 2>&1 || runtime::exec "$@"
  local -a kit_options=(--interactive)
  [[ ! -t 0 || ! -t 1 ]] || kit_options+=(--tty)
  exec "${KIT_TOOL}" exec "${kit_options[@]}" "${kit_name}" "$@"
}
