# shellcheck shell=bash
# runtimes/enroot.sh - unpacks the image into a container of its own on each node, once, and starts that.
# images: .sqsh .squashfs
# mounts-refuse: space colon backslash

# shellcheck source=enroot.sh
source "${KIT_SCRIPTS}/enroot.sh"

runtime::check() {
  command -v enroot >/dev/null ||
    kit::die "enroot is not installed here" "install it on every node, or choose another runtime (apptainer runs .sqsh files, too)"
  [[ -r "${KIT_IMAGE}" ]] ||
    kit::die "the image ${KIT_IMAGE} does not exist here or cannot be read" "put it on a file system that every node sees"

  enroot::choose_paths
}

# Node-local and one folder per user: what the user or the cluster's profile says, else the site's enroot.conf, else /tmp.
enroot::choose_paths() {
  local site='' mine
  if [[ -z "${ENROOT_DATA_PATH:-}${KIT_SCRATCH}" ]] && site="$(enroot::site_data_path)"; then
    export ENROOT_DATA_PATH="${site}"
    return
  fi
  mine="${KIT_SCRATCH:-/tmp}/kit-${UID}"
  export ENROOT_DATA_PATH="${ENROOT_DATA_PATH:-${mine}/enroot/data}"
  export ENROOT_RUNTIME_PATH="${mine}/enroot/run" ENROOT_CACHE_PATH="${mine}/enroot/cache" ENROOT_TEMP_PATH="${mine}/enroot/tmp"
  (umask 077 && mkdir -p -- "${mine}" "${ENROOT_DATA_PATH}" "${ENROOT_RUNTIME_PATH}" "${ENROOT_CACHE_PATH}" "${ENROOT_TEMP_PATH}") ||
    kit::die "cannot write below ${KIT_SCRATCH:-/tmp}" "name a writable node-local folder: \`scratch: /local\` in the cluster's profile"
  # Others may write to /tmp: a folder that somebody else prepared there is not ours to trust.
  [[ -O "${mine}" && ! -L "${mine}" && -O "${ENROOT_DATA_PATH}" ]] ||
    kit::die "${mine} or ${ENROOT_DATA_PATH} belongs to somebody else" "remove it, or name another scratch folder in the cluster's profile"
  ! enroot::is_remote "${ENROOT_DATA_PATH}" ||
    kit::die "${ENROOT_DATA_PATH} is on a network file system" "name node-local scratch in the cluster's profile, or unset ENROOT_DATA_PATH"
}

# A container is named by its image's content, so a rebuilt image gets a new one and running jobs keep theirs.
runtime::prepare() {
  KIT_CONTAINER="kit-$(image::fingerprint "${KIT_IMAGE}")"
  enroot::ensure "${KIT_CONTAINER}"
}

runtime::exec() {
  # A login shell would source dotfiles and reset the image's PATH.
  export ENROOT_LOGIN_SHELL=no ENROOT_MOUNT_HOME=no
  enroot::set_devices
  local -a kit_args=(--rw)
  [[ -z "${KIT_REMAP_ROOT}" ]] || kit_args+=(--root)
  local -i kit_i
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    kit_args+=(--mount "${KIT_MOUNTS[kit_i]}:${KIT_MOUNTS[kit_i + 1]}:none:x-create=auto,rbind,${KIT_MOUNTS[kit_i + 2]}")
  done
  exec enroot start "${kit_args[@]}" "${KIT_CONTAINER}" "$@"
}
