#!/usr/bin/env bash
# probe.sh - what this machine has of what jobs need, for `kit init` and `kit doctor`. It changes nothing, and needs no Python.
#
#   probe.sh [NAME=VALUE]... [NODE:ADDRESS]...
#
# The values: tools (programs to look for), torch (whether a Python has it), engines (whether they answer), look (a folder; may be given
# again), folder (shared), mark (a file in it) and text (what is in that), scratch, image, fingerprint, start (the runtime that is to start
# the image), command (look for what the job starts), program (a program of the image's or the node's that it names), module (a package
# that its Python must have), path (the job's own PATH), mount (may be given again). The nodes are those that this one must know by name
# and reach; ADDRESS is Slurm's for it.
#
# It prints lines of fields, with tabs between them: NODE FACT VALUE... (launch/kit/cluster/probe.py reads them). After the line `ready`
# it does what its input says: `clock` has it tell the time, `connect NODE:PORT,PORT...` has it reach the others, and at the input's end
# it ends. kit sends those when all nodes are ready: no file system is needed for that.
#
# Without -e: what fails is what is to be told, and the rest goes on.
set -uo pipefail +o posix +o noclobber && shopt -u failglob
# An older bash, which is to be told as well, takes an empty array for an unset one.
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || set +u

source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/network.sh"
source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/gpus.sh"
source "${KIT_RUN_DIR}/lib/kept_container.sh"
source "${KIT_RUN_DIR}/lib/runtimes.sh"
source "${KIT_RUN_DIR}/lib/contents.sh"
source "${KIT_RUN_DIR}/lib/fabric.sh"
source "${KIT_RUN_DIR}/lib/reach.sh"

declare -A ASKED=() ADDRESS_OF=()
declare -a NODES=() MOUNTS=() FOLDERS=()
GPU_BRAND='' # as an image's NVIDIA_REQUIRE_CUDA has it: nvidia, tesla, geforce

# probe::say FACT VALUE... - tabs and line ends are what parts fields and lines.
probe::say() {
  local line
  probe::line "$@" 2>/dev/null # where this machine lacks the user's locale, bash says so at each return from LC_ALL=C
  printf '%s\n' "${line}"
}

# probe::line FACT VALUE... - sets the caller's `line`: srun hands on lines of up to 1024 bytes in one piece.
probe::line() {
  local LC_ALL=C field # so that bytes are what bash counts
  line="$(kit::node)"
  for field in "$@"; do line+=$'\t'"${field//[$'\t\n']/ }"; done
  line="${line:0:900}"
}

probe::mode() { stat --format='%n is of %U:%G with mode %a' -- "$1" 2>/dev/null; }

# probe::place FACT FOLDER [MORE] - what is written there ends up where: of the folder, or the nearest one above it that exists, why it
# cannot be written, its file system with the free MiB and inodes, and its inode and last change, which tell one folder from another.
# As FACT-noexec: that no code can be loaded from there.
probe::place() {
  local existing="$2" type free inodes total inode changed able=yes options
  while [[ ! -e "${existing}" && "${existing}" == */* && -n "${existing%/*}" ]]; do existing="${existing%/*}"; done
  # A file server that is gone would keep df waiting.
  read -r type free inodes total < <(timeout 5 df --output=fstype,avail,iavail,itotal --block-size=1048576 -- "${existing}" 2>/dev/null | tail -n 1)
  read -r inode changed < <(timeout 5 stat -c '%i %Y' -- "${existing}" 2>/dev/null)
  options=",$(findmnt --noheadings --output OPTIONS --target "${existing}" 2>/dev/null),"
  if [[ ! -d "${existing}" ]]; then
    able="${existing} is not a folder"
  elif [[ "${options}" == *,ro,* ]]; then
    able='it is mounted read-only'
  elif [[ ! -w "${existing}" || ! -x "${existing}" ]]; then
    able="$(probe::mode "${existing}")"
  fi
  probe::say "$1" "$2" "${existing}" "${able}" "${type:-unknown}" "${free:--}" "${inodes:--}" "${total:--}" "${inode:-}" "${changed:-}" "${@:3}"
  [[ "${options}" != *,noexec,* ]] || probe::say "$1-noexec" "${existing}"
}

# ---------------------------------------------------------------- this machine alone

probe::machine() {
  local version=none size free fact first second
  local -a words
  probe::say user "$(id -un)" "${UID}"
  probe::say bash "${BASH_VERSION}"
  probe::say machine "$(uname -m)"
  # nproc obeys these two, which are the user's for other programs.
  probe::say cpus "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null)"
  for fact in memlock:l nofile:n nproc:u; do
    probe::say limit "${fact%:*}" "$(ulimit -S "-${fact#*:}")" "$(ulimit -H "-${fact#*:}")"
  done
  read -r size free < <(timeout 5 df --output=size,avail --block-size=1048576 -- /dev/shm 2>/dev/null | tail -n 1)
  probe::say shm "${size:-0}" "${free:-0}" "$([[ -d /dev/shm && -w /dev/shm ]] || probe::mode /dev/shm || printf 'there is none')"
  [[ ! -d /sys/fs/cgroup/freezer && ! -d /sys/fs/cgroup/memory ]] || version=v1
  [[ ! -e /sys/fs/cgroup/cgroup.controllers ]] || version=v2
  probe::say cgroups "${version}" "$(grep -sc slurm /proc/self/cgroup)"
  while read -r first second; do
    probe::say interface "${first%@*}" "${second%/*}"
  done < <(ip -oneline address show up scope global 2>/dev/null | awk '{ print $2, $4 }')
  for fact in /sys/class/infiniband/*/ports/*; do
    [[ -r "${fact}/state" ]] || continue
    read -r _ second <"${fact}/state"
    first="${fact#/sys/class/infiniband/}"
    probe::say rdma "${first%%/*}" "${second}" "$(cat "${fact}/link_layer" 2>/dev/null)"
  done
  fabric::look ''
  read -ra words <<<"${KIT_FABRIC}" # kit::split would leave an older bash with set -f, and the rest of this without its patterns
  probe::say fabric "${words[@]}"
}

# probe::make ROOT - what tells a machine of a cloud, or of a rack, from others beside its adapters: the tag of its firmware, and folders
# of devices. ROOT is empty, but for tests.
probe::make() {
  local line folder
  fabric::read "$1/sys/class/dmi/id/chassis_asset_tag"
  [[ -z "${line}" ]] || probe::say chassis "${line}"
  for folder in /dev/aperture_devices /dev/nvidia-caps-imex-channels; do
    ! compgen -G "$1${folder}/*" >/dev/null || probe::say devices "${folder}"
  done
}

# probe::count_gpus - prints the number of GPUs as Slurm counts them, where parts of one (MIG) are GPUs of their own, of what gpus::ask has
# printed, which is the input.
probe::count_gpus() { awk '/^GPU / { count++; is_whole = 1 } /^ +MIG / { if (!is_whole) count++; is_whole = 0 } END { print count + 0 }'; }

probe::gpus() {
  local -a cards=(/proc/driver/nvidia/gpus/*/) names
  local said driver cuda
  if [[ ! -d "${cards[0]}" ]]; then
    cards=()
    # Of other makes' GPUs nothing else tells a job that asks for none: the kernel shows it none of those in /sys/class/kfd. NVIDIA's (0x10de)
    # are there by nouveau, where their own driver is not installed.
    command -v nvidia-smi >/dev/null ||
      mapfile -t cards < <(
        grep -Lsx 0x10de /sys/class/drm/renderD*/device/vendor
        compgen -G '/sys/class/accel/accel[0-9]*'
      )
  fi
  if said="$(gpus::ask 2>&1)"; then
    mapfile -t names < <(gpus::names <<<"${said}")
    probe::say gpus "${#names[@]}" "${#cards[@]}"
    [[ "${said}" != *' MIG '* ]] || probe::say gpus-of-slurm "$(probe::count_gpus <<<"${said}")"
    ((${#names[@]} == 0)) || probe::say gpu "${names[@]}"
  else
    probe::say gpus 0 "${#cards[@]}" "$(kit::last_line <<<"${said}")"
    return
  fi
  said="$(timeout 10 nvidia-smi 2>/dev/null)"
  driver="$(sed -n 's/.*\(Driver\|KMD\) Version: *\([0-9.]*\).*/\2/p' <<<"${said}" | head -n 1)"
  cuda="$(sed -n 's/.*CUDA \(UMD \)*Version: *\([0-9.]*\).*/\2/p' <<<"${said}" | head -n 1)"
  GPU_BRAND="$(timeout 10 nvidia-smi -q 2>/dev/null | sed -n 's/.*Product Brand *: *//p' | head -n 1)"
  GPU_BRAND="$(LC_ALL=C && printf '%s' "${GPU_BRAND,,}")" GPU_BRAND="${GPU_BRAND// /}" # Turkish has another small i
  [[ -z "${driver}" ]] || probe::say driver "${driver}" "${cuda}" "${GPU_BRAND}"
}

probe::tools() {
  local tool version
  for tool in ${ASKED[tools]:-}; do
    command -v "${tool}" >/dev/null || continue
    version="$(timeout 10 "${tool}" --version 2>/dev/null)" || version="$(timeout 10 "${tool}" version 2>/dev/null)" || version=unknown
    version="$(head -n 1 <<<"${version}")"
    version="${version##*ersion }"
    probe::say tool "${tool}" "${version%%,*}"
  done
}

# probe::restriction ROOT - apparmor where AppArmor lets only programs that have a profile of their own use user namespaces, as Ubuntu
# does; unshare has none. ROOT is empty, but for tests.
probe::restriction() {
  local line
  fabric::read "$1/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
  [[ "${line}" != 1 ]] || printf 'apparmor\n'
}

probe::namespaces() {
  local said kind
  local -a directory=(getsubids) # where /etc/nsswitch.conf has `subid:`, it knows what the files do not
  if ! command -v unshare >/dev/null; then
    probe::say namespaces unknown
  elif said="$(timeout 5 unshare --user --map-root-user true 2>&1)"; then
    probe::say namespaces ok
  else
    probe::say namespaces "$(kit::last_line <<<"${said}")" "$(probe::restriction '')"
  fi
  for kind in subuid subgid; do
    said="$(grep -sE "^($(id -un)|${UID}):" "/etc/${kind}" | head -n 1)"
    [[ -n "${said}" ]] || said="$(timeout 5 "${directory[@]}" "$(id -un)" 2>/dev/null | head -n 1)"
    probe::say "${kind}" "${said}"
    directory+=(-g)
  done
}

probe::scratch() {
  local -r scratch="${ASKED[scratch]:-/tmp}"
  local -r mine="${scratch}/kit-${UID}"
  probe::place scratch "${scratch}"
  if [[ -e "${mine}" || -L "${mine}" ]] && [[ ! -O "${mine}" || -L "${mine}" || (-w "${scratch}" && ! -w "${mine}") ]]; then
    probe::say scratch-owner "$(probe::mode "${mine}")"
  fi
}

# ---------------------------------------------------------------- what runtimes say of themselves

# probe::runtime NAME - beside the functions of its file.
# shellcheck disable=SC2329  # runtimes::ask calls it
probe::runtime() {
  local said folder
  said="$(runtime::setuid)"
  [[ -z "${said}" ]] || probe::say setuid "$1" "${said}"
  [[ -z "${ASKED[engines]:-}" ]] || said="$(runtime::works 2>&1)" || probe::say stopped "$1" "$(kit::last_line <<<"${said}")"
  said="$(runtime::cannot_mount)"
  [[ -z "${said}" ]] || probe::say cannot-mount "$1" "${said}"
  said="$(runtime::cannot_mount_data)"
  [[ -z "${said}" ]] || probe::say cannot-mount-data "$1" "${said}"
  read -r folder < <(runtime::folders) || return 0 # the one for new containers is the first
  probe::place containers "${folder}" "$1"
  [[ ! -e "${folder}" || -O "${folder}" ]] || probe::say containers-owner "$(probe::mode "${folder}")"
}

# Containers of kit's that nobody is making any more, and that are not whole.
probe::half_made() {
  local folder path lock
  while read -r folder; do
    for path in "${folder}"/.*.unfinished "${folder}"/*; do
      [[ -d "${path}" && "${path##*/}" =~ ^\.?${KIT_CONTAINER_PATTERN}(\.unfinished)?$ ]] || continue
      ! kept_container::is_whole "${path}" || continue
      # What is being made at this moment is locked. Nothing is opened for writing here.
      lock="$(kept_container::lock "${path}")"
      [[ ! -r "${lock}" ]] || flock --nonblock "${lock}" true 2>/dev/null || continue
      probe::say half-made "${path}"
    done
  done < <(runtimes::ask runtime::folders | sort -u)
}

# ---------------------------------------------------------------- what all nodes share

probe::shared() {
  local -r folder="${ASKED[folder]:-}" mark="${ASKED[mark]:-}"
  local said problem source needed
  if [[ -n "${folder}" ]]; then
    if ! timeout 5 test -d "${folder}"; then
      probe::say folder missing
    elif ! said="$(timeout 5 cat -- "${mark}" 2>&1)" || [[ "${said}" != "${ASKED[text]}" ]]; then
      probe::say folder other "${said}"
    elif problem="$( (: >>"${mark}") 2>&1)"; then # opened for writing; nothing is written
      probe::say folder ok "$(timeout 5 df --output=fstype -- "${folder}" 2>/dev/null | tail -n 1)"
    else
      probe::say folder read-only "${problem##*: }"
    fi
  fi
  for source in "${MOUNTS[@]}"; do
    needed=-r
    ! timeout 5 test -d "${source}" || needed=-x # as in lib/mounts.sh
    if ! timeout 5 test -e "${source}"; then
      probe::say mount missing "${source}"
    elif ! timeout 5 test "${needed}" "${source}"; then
      probe::say mount unreadable "$(probe::mode "${source}")"
    fi
  done
  for source in "${FOLDERS[@]}"; do
    [[ ! -d "${source}" ]] || probe::place look "${source}"
  done
}

# ---------------------------------------------------------------- what kit asks

probe::answer() {
  local word rest
  while read -r word rest; do
    case "${word}" in
      clock) probe::say clock "$(date +%s.%N)" ;;
      connect)
        # shellcheck disable=SC2086  # words without spaces
        reach::connect ${rest}
        probe::say connected
        ;;
    esac
  done
}

probe::main() {
  local word
  for word in "$@"; do
    case "${word}" in
      mount=*) MOUNTS+=("${word#*=}") ;;
      look=*) FOLDERS+=("${word#*=}") ;;
      [a-z]*=*) ASKED["${word%%=*}"]="${word#*=}" ;;
      *) NODES+=("${word%%:*}") ADDRESS_OF["${word%%:*}"]="${word#*:}" ;;
    esac
  done
  KIT_SCRATCH="${ASKED[scratch]:-}" KIT_IMAGE="${ASKED[image]:-}"
  probe::machine
  probe::make ''
  probe::gpus
  probe::tools
  probe::namespaces
  probe::scratch
  runtimes::ask probe::runtime
  probe::half_made
  probe::shared
  contents::look
  reach::names
  ((${#NODES[@]} == 0)) || reach::listen
  probe::say ready
  probe::answer
  reach::end
  exit 0
}

probe::main "$@"
