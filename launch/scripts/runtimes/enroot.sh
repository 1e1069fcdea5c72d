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

  # Node-local and one folder per user: enroot's own defaults may be a shared home or a missing /run/user.
  local -r mine="${KIT_SCRATCH}/kit-${UID}"
  export ENROOT_DATA_PATH="${ENROOT_DATA_PATH:-${mine}/enroot/data}"
  export ENROOT_RUNTIME_PATH="${mine}/enroot/run" ENROOT_CACHE_PATH="${mine}/enroot/cache" ENROOT_TEMP_PATH="${mine}/enroot/tmp"
  (umask 077 && mkdir -p -- "${mine}" "${ENROOT_DATA_PATH}" "${ENROOT_RUNTIME_PATH}" "${ENROOT_CACHE_PATH}" "${ENROOT_TEMP_PATH}") ||
    kit::die "cannot write below ${KIT_SCRATCH}" "name a writable node-local folder: \`scratch: /local\` in the cluster's profile"
  # Others may write to /tmp: a folder that somebody else prepared there is not ours to trust.
  [[ -O "${mine}" && -O "${ENROOT_DATA_PATH}" ]] ||
    kit::die "${mine} or ${ENROOT_DATA_PATH} belongs to somebody else" "remove it, or name another scratch folder in the cluster's profile"
  # Past a few nodes, enroot's lock inside a container on a shared file system times out.
  case "$(stat --file-system --format=%T -- "${ENROOT_DATA_PATH}")" in
    nfs* | lustre | gpfs | beegfs | ceph | panfs | smb* | cifs | afs | wekafs)
      kit::die "${ENROOT_DATA_PATH} is on a network file system" "name node-local scratch in the cluster's profile, or unset ENROOT_DATA_PATH"
      ;;
  esac
}

# A container is named by its image's content, so a rebuilt image gets a new one and running jobs keep theirs.
runtime::prepare() {
  KIT_CONTAINER="kit-$(image::fingerprint "${KIT_IMAGE}")"
  enroot::ensure "${KIT_CONTAINER}"
}

runtime::exec() {
  # A login shell would source dotfiles and reset the image's PATH.
  export ENROOT_LOGIN_SHELL=no ENROOT_MOUNT_HOME=no
  if [[ -e /dev/nvidiactl ]]; then
    export NVIDIA_VISIBLE_DEVICES="${NVIDIA_VISIBLE_DEVICES:-all}" NVIDIA_DRIVER_CAPABILITIES="${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}"
  else
    export NVIDIA_VISIBLE_DEVICES=void # an image that asks for GPUs would not start on a node without
  fi
  [[ ! -d /dev/infiniband ]] || export MELLANOX_VISIBLE_DEVICES="${MELLANOX_VISIBLE_DEVICES:-all}"
  local -a args=(--rw)
  [[ -z "${KIT_REMAP_ROOT}" ]] || args+=(--root)
  local -i i
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    args+=(--mount "${KIT_MOUNTS[i]}:${KIT_MOUNTS[i + 1]}:none:x-create=auto,rbind,${KIT_MOUNTS[i + 2]}")
  done
  exec enroot start "${args[@]}" "${KIT_CONTAINER}" "$@"
}
