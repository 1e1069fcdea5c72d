# shellcheck shell=bash
# runtimes/enroot.sh - unpacks the image into a container of its own on each node, once, and starts that.
# images: .sqsh .squashfs
# mounts-refuse: space colon backslash

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
# It is unpacked under another name and moved into place, stamped: a half-made one is never started.
runtime::prepare() {
  KIT_CONTAINER="kit-$(image::fingerprint "${KIT_IMAGE}")"
  local -r rootfs="${ENROOT_DATA_PATH}/${KIT_CONTAINER}"
  [[ ! -e "${rootfs}/.kit-complete" ]] || return 0

  local lock
  exec {lock}>"${ENROOT_DATA_PATH}/.${KIT_CONTAINER}.lock"
  flock --timeout 900 "${lock}" ||
    kit::die "another job has been creating ${KIT_CONTAINER} for 15 minutes" "look for it: fuser ${ENROOT_DATA_PATH}/.${KIT_CONTAINER}.lock"
  if [[ ! -e "${rootfs}/.kit-complete" ]]; then # nobody made it while we waited
    enroot::create "${rootfs}"
  fi
  exec {lock}>&-
}

# enroot::create ROOTFS - under the lock.
enroot::create() {
  local -r rootfs="$1"
  local -r unfinished=".${KIT_CONTAINER}.unfinished"
  local output
  enroot::remove "${unfinished}" # left by a start that was killed
  enroot::remove "${KIT_CONTAINER}"
  kit::say "creating the container ${KIT_CONTAINER} from ${KIT_IMAGE}"
  if ! output="$(enroot create --name "${unfinished}" "${KIT_IMAGE}" 2>&1 </dev/null)"; then
    enroot::remove "${unfinished}"
    printf '%s\n' "${output}" | tail -n 5 >&2
    kit::die "enroot cannot unpack ${KIT_IMAGE}" \
      "see the lines above; free space here: $(df -h --output=avail -- "${ENROOT_DATA_PATH}" | tail -n 1 | tr -d ' ') in ${ENROOT_DATA_PATH}"
  fi
  printf 'image %s\n' "${KIT_IMAGE}" >"${ENROOT_DATA_PATH}/${unfinished}/.kit-complete"
  mv --no-target-directory -- "${ENROOT_DATA_PATH}/${unfinished}" "${rootfs}"
}

enroot::remove() {
  [[ ! -e "${ENROOT_DATA_PATH}/$1" ]] || enroot remove --force "$1" >/dev/null 2>&1 || rm -rf -- "${ENROOT_DATA_PATH:?}/$1"
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
