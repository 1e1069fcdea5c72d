# enroot.sh - creates Enroot's containers so that a half-made or outdated one is never started; for the runtimes
# enroot and pyxis.

source "${KIT_RUN_DIR}/lib/kept_container.sh"
source "${KIT_RUN_DIR}/lib/image_variables.sh"

# enroot::configured - prints where the site's enroot.conf puts containers.
enroot::configured() {
  local info
  if info="$(env -u ENROOT_DATA_PATH enroot info 2>/dev/null)"; then
    printf '%s\n' "${info}" | sed -n 's/^ *ENROOT_DATA_PATH=//p'
  else
    enroot::configured_before_4
  fi
}

# enroot::configured_before_4 - the same. Enroot 3 has no `info`. But it is a bash script, which sources its library when it has read
# enroot.conf; and it takes this function for that `source`.
enroot::configured_before_4() (
  # shellcheck disable=SC2329  # enroot calls it
  source() { printf '%s\n' "${ENROOT_DATA_PATH}" && exit; }
  export -f source
  # BASH_ENV may name a file that has a `source`, too; and no word is to be said of a wrong enroot.conf.
  env -u ENROOT_DATA_PATH -u BASH_ENV enroot version 2>/dev/null | grep '^/' || true
)

# enroot::site_data_path - where the site's enroot.conf puts containers, if it says so: not in the home folder, and
# on this node's own disk.
enroot::site_data_path() {
  local path
  path="$(enroot::configured)"
  # A folder of all users would let one of them prepare what another starts.
  [[ -n "${path}" && "${path}" != "${HOME}"/* && -w "${path}" ]] && enroot::is_own "${path}" && ! enroot::is_remote "${path}" && printf '%s\n' "${path}"
}

# enroot::is_own FOLDER - whether it is this user's. A site or the user may have made a link of it, but nobody else, who could turn it.
enroot::is_own() { [[ -O "$1" && "$(stat -c %u -- "${1%/}")" == @(0|"${UID}") ]]; }

# Past a few nodes, enroot's lock inside a container on a shared file system times out.
enroot::is_remote() {
  case "$(df --output=fstype -- "$1" | tail -n 1)" in # stat knows no more than the numbers of some
    nfs* | lustre | gpfs | beegfs* | fhgfs | *ceph* | panfs | pvfs* | orangefs | smb* | cifs | afs | weka* | vast* | dvs | virtiofs | *gluster* | fuse.sshfs | fuse.juicefs) return 0 ;;
    *) return 1 ;;
  esac
}

# enroot::set_devices - sets what Enroot's NVIDIA and Mellanox hooks read. Both take this shell's word before the image's.
enroot::set_devices() {
  local -r driver=/dev/nvidiactl mellanox='/sys/bus/pci/drivers/mlx5_core/*/infiniband_verbs'
  local missing
  missing="$(enroot::missing "${driver}" "${mellanox}")" || missing="${driver} ${mellanox}"
  if [[ "${missing}" == *"${driver}"* ]]; then
    export NVIDIA_VISIBLE_DEVICES=void # an image that asks for GPUs would not start on a node without
  else
    # Unset, there would be no GPU in images that name none, and of the driver only nvidia-smi in those that name no part of it.
    export NVIDIA_VISIBLE_DEVICES="${NVIDIA_VISIBLE_DEVICES:-all}"
    [[ -n "${NVIDIA_DRIVER_CAPABILITIES:-}" ]] || image_variables::print | grep '^NVIDIA_DRIVER_CAPABILITIES=' >/dev/null || export NVIDIA_DRIVER_CAPABILITIES=compute,utility
  fi
  # This hook hides every adapter but Mellanox's. Without it the container has all of the host's, unless the site restricts /dev.
  [[ "${missing}" == *"${mellanox}"* ]] || export MELLANOX_VISIBLE_DEVICES="${MELLANOX_VISIBLE_DEVICES:-all}"
}

# enroot::missing PATTERN... - prints those that match no file, here or on one of the nodes to which KIT_ON_NODE leads.
enroot::missing() {
  local -a on_node=()
  [[ -z "${KIT_ON_NODE[*]:-}" ]] || on_node=("${KIT_ON_NODE[@]}")
  # shellcheck disable=SC2016  # the inner shell expands it
  "${on_node[@]}" bash -c 'for pattern; do compgen -G "${pattern}" >/dev/null || printf "%s\n" "${pattern}"; done' bash "$@"
}

# enroot::ensure NAME - creates the container NAME from KIT_IMAGE in ENROOT_DATA_PATH unless it is there, whole.
# It is unpacked under another name and moved into place, stamped.
enroot::ensure() {
  kept_container::make_once kept_container::is_whole "${ENROOT_DATA_PATH}/$1" "creating $1" enroot::create "$1"
  kept_container::use "${ENROOT_DATA_PATH}/$1"
  enroot::open_folders "${ENROOT_DATA_PATH}/$1"
}

# enroot::open_folders ROOTFS - Enroot makes the folder that something is mounted on without any permission. This opens those below which
# this run mounts something.
enroot::open_folders() {
  local target path part
  local -a parts targets=(${KIT_CACHE:+"${KIT_CACHE_ROOT}"}) # which is mounted at the start
  local -i i
  for ((i = 1; i < ${#KIT_MOUNTS[@]}; i += 3)); do targets+=("${KIT_MOUNTS[i]}"); done
  for target in "${targets[@]}"; do
    path="$1"
    kit::split parts / "${target%/*}"
    for part in "${parts[@]}"; do
      path+="/${part}"
      [[ -d "${path}" && ! -L "${path}" && "${part}" != .. ]] || break # a link may lead out of the container
      [[ -x "${path}" ]] || chmod 755 -- "${path}" || break
    done
  done
}

# enroot::create NAME - under the lock.
enroot::create() {
  local -r name="$1" unfinished="${ENROOT_DATA_PATH}/.$1.unfinished"
  local output free cause=refused fix='see the lines above'
  kept_container::clear "${ENROOT_DATA_PATH}/${name}"
  kit::say "creating the container ${name} from ${KIT_IMAGE}"
  if ! output="$({
    enroot create --name "${unfinished##*/}" "${KIT_IMAGE}" </dev/null && enroot::skip_entrypoint "${unfinished}" &&
      kept_container::stamp "${unfinished}" "image ${KIT_IMAGE}" && mv --no-target-directory -- "${unfinished}" "${ENROOT_DATA_PATH}/${name}"
  } 2>&1)"; then
    printf '%s\n' "${output}" | tail -n 5 >&2 || true
    free="$(df -h --output=avail,iavail -- "${ENROOT_DATA_PATH}" | awk 'END { print $1 ($2 == "-" ? "" : ", and " $2 " more files") }')" || free='not known'
    kept_container::discard "${unfinished}"
    case "${output}" in
      *'No space left'* | *'quota exceeded'*)
        cause=disk-full fix="\`kit images gc --nodes\` removes what no job uses; free in ${ENROOT_DATA_PATH}: ${free}"
        [[ "${ENROOT_DATA_PATH}" != "${KIT_SCRATCH:-/tmp}/kit-${UID}"/* ]] || fix+="; \`scratch\` in the profile names another disk"
        ;;
      *'Invalid image format'* | *'failed to read'* | *uncompress* | *superblock* | *corrupt*) # as unsquashfs says it
        cause=image-damaged fix+=', and build or copy the image again'
        ;;
    esac
    kit::die "enroot cannot unpack ${KIT_IMAGE}" "${fix}" "${cause}"
  fi
}

# enroot::skip_entrypoint ROOTFS - Enroot starts every command by /etc/rc, which has the image's entrypoint: one that ignores its
# arguments would run in place of the ranks. No other runtime of kit runs it.
enroot::skip_entrypoint() {
  [[ -d "$1/etc" && ! -L "$1/etc" ]] || return 0 # a link may lead out of the container
  rm -f -- "$1/etc/rc" && printf 'exec "$@"\n' >"$1/etc/rc"
}
