# runtimes/enroot.sh - unpacks the image into a container of its own on each node, once, and starts that; or starts the image itself, mounted.
# images: .sqsh .squashfs
# tool: enroot
# auto: 1
# user-namespaces: yes
# own-disk: yes
# containers-variable: ENROOT_DATA_PATH
# unpacks: yes
# mounts-image: for-task
# mounts-data-images: yes
# mounts-refuse: space colon backslash

source "${KIT_RUN_DIR}/lib/enroot.sh"
source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/mounted_image.sh"
source "${KIT_RUN_DIR}/lib/scratch.sh"

runtime::check() {
  command -v enroot >/dev/null ||
    kit::die "enroot is not installed here" "install it on every node, or choose another runtime (apptainer runs .sqsh files, too)" runtime-missing
  image::check
}

# enroot::choose_paths NAME - node-local and one folder per user: what the user or the cluster's profile says, else the
# site's enroot.conf, else /tmp, where the container may be from before.
enroot::choose_paths() {
  local site=''
  if [[ -z "${ENROOT_DATA_PATH:-}${KIT_SCRATCH}" ]] && ! enroot::has_own "$1" && site="$(enroot::site_data_path)"; then
    export ENROOT_DATA_PATH="${site}"
    return
  fi
  enroot::set_paths
  (umask 077 && mkdir -p -- "${ENROOT_DATA_PATH}" "${ENROOT_RUNTIME_PATH}" "${ENROOT_CACHE_PATH}" "${ENROOT_TEMP_PATH}") ||
    kit::die "cannot write to ${ENROOT_DATA_PATH} or ${KIT_MINE}" "check their owner and free space, or unset ENROOT_DATA_PATH"
  enroot::is_own "${ENROOT_DATA_PATH}" ||
    kit::die "${ENROOT_DATA_PATH} belongs to somebody else" "have it removed, or name another scratch folder in the cluster's profile"
  ! enroot::is_remote "${ENROOT_DATA_PATH}" ||
    kit::die "${ENROOT_DATA_PATH} is on a network file system" "name node-local scratch in the cluster's profile, or unset ENROOT_DATA_PATH"
}

# enroot::set_paths - makes and names the folder of this user's that Enroot needs for a start, even where the containers lie elsewhere.
enroot::set_paths() {
  scratch::make
  export ENROOT_DATA_PATH="${ENROOT_DATA_PATH:-${KIT_MINE}/enroot/data}"
  export ENROOT_RUNTIME_PATH="${KIT_MINE}/enroot/run" ENROOT_CACHE_PATH="${KIT_MINE}/enroot/cache" ENROOT_TEMP_PATH="${KIT_MINE}/enroot/tmp"
}

# enroot::has_own NAME - whether this container is where kit puts them by itself.
enroot::has_own() {
  local -r own="/tmp/kit-${UID}/enroot/data/$1"
  kept_container::is_whole "${own}" && [[ -O "${own}" ]]
}

# enroot::use_paths NAME - those that `prepare` chose for this container; asking enroot again would take longer than looking.
enroot::use_paths() {
  if [[ -n "${ENROOT_DATA_PATH:-}${KIT_SCRATCH}" ]] || enroot::has_own "$1"; then
    enroot::set_paths
  fi # else it is in the site's folder, which enroot knows by itself
}

# enroot::is_mounted NAME - whether the image itself is started: the job says so, or leaves it to this node, which has no container of it.
enroot::is_mounted() {
  local data="${ENROOT_DATA_PATH:-}"
  case "${KIT_UNPACK:-yes}" in
    yes) return 1 ;;
    no) return 0 ;;
  esac
  [[ -n "${data}" ]] || data="$(enroot::configured)"
  ! kept_container::is_whole "${data}/$1"
}

runtime::prepare() {
  local name
  name="$(kept_container::name)"
  [[ "${KIT_UNPACK:-yes}" == no ]] || enroot::choose_paths "${name}" # which may have to ask enroot
  if enroot::is_mounted "${name}"; then
    enroot::set_paths
    ! mounted_image::settle : || return 0
  fi
  enroot::ensure "${name}"
}

runtime::exec() {
  local kit_container
  kit_container="$(kept_container::name)"
  enroot::use_paths "${kit_container}"
  # A login shell would source dotfiles and reset the image's PATH.
  export ENROOT_LOGIN_SHELL=no ENROOT_MOUNT_HOME=no
  enroot::set_devices
  local -a kit_args=(--rw)
  if enroot::is_mounted "${kit_container}"; then
    enroot::set_paths
    kit_args+=(--rc "${KIT_RUN_DIR}/lib/no_entrypoint.sh")
    kit_container="${KIT_IMAGE}"
    mounted_image::read_ahead
  fi
  [[ -z "${KIT_REMAP_ROOT}" ]] || kit_args+=(--root)
  local -i kit_i
  local -a kit_data=()
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    if [[ "${KIT_MOUNTS[kit_i + 2]}" == data ]]; then
      scratch::make
      kit_data+=("${KIT_MOUNTS[kit_i]}" "${KIT_MINE}/data/${kit_i}")
      kit_args+=(--mount "${kit_data[-1]}:${KIT_MOUNTS[kit_i + 1]}:none:x-create=dir,rbind,ro")
    else
      kit_args+=(--mount "${KIT_MOUNTS[kit_i]}:${KIT_MOUNTS[kit_i + 1]}:none:x-create=auto,rbind,${KIT_MOUNTS[kit_i + 2]}")
    fi
  done
  ((${#kit_data[@]} == 0)) ||
    exec enroot-nsenter --user --mount bash "${KIT_RUN_DIR}/lib/data_images.sh" "${kit_data[@]}" -- enroot start "${kit_args[@]}" "${kit_container}" "$@"
  exec enroot start "${kit_args[@]}" "${kit_container}" "$@"
}

runtime::folders() {
  [[ -z "${ENROOT_DATA_PATH:-}" ]] || printf '%s\n' "${ENROOT_DATA_PATH}"
  [[ -n "${ENROOT_DATA_PATH:-}${KIT_SCRATCH:-}" ]] || enroot::site_data_path || true
  printf '%s\n' "${KIT_SCRATCH:-/tmp}/kit-${UID}/enroot/data"
  enroot::configured
}

runtime::cannot_mount() { mounted_image::missing; }
runtime::cannot_mount_data() { mounted_image::missing_fuse; }
