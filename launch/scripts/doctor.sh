#!/usr/bin/env bash
# doctor.sh - what this node has of what a job needs. It reads alone, and needs no Python.
#
#   doctor.sh [NAME=VALUE]... [NODE:ADDRESS]...
#
# The values: folder (shared), mark (a file in it) and text (what is in that), scratch, image, fingerprint, start (the runtime that
# is to start the image), command (look for what the job starts), program (a program of the image's or the node's that it names),
# module (a package that its Python must have), path (the job's own PATH), mount (may be given again). The nodes are those that this
# one must know by name and reach; ADDRESS is Slurm's for it.
#
# It prints lines of fields, with tabs between them: NODE FACT VALUE... (see launch/kit/doctor/facts.py, which reads them; what they
# mean is judged there). After the line `ready` it does what its input says: `clock` has it tell the time, `connect NODE:PORT,PORT...`
# has it reach the others, and at the input's end it ends. kit sends those when all nodes are ready: no file system is needed for that.
#
# Without -e: what fails is what is to be told, and the rest goes on.
set -uo pipefail +o posix
# An older bash, which is to be told as well, takes an empty array for an unset one.
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || set +u

# shellcheck source=lib.sh
source "${KIT_SCRIPTS}/lib.sh"

# shellcheck source=inside.sh
source "${KIT_SCRIPTS}/inside.sh"

readonly DOCTOR_FEW=16 # nodes that one connects to; with more, each has others
readonly DOCTOR_CONNECT_S=3
# shellcheck disable=SC2016  # Perl's, which bash has to leave alone
readonly DOCTOR_LISTEN='use Socket; $| = 1;
for (@ARGV) {
  my $s;
  socket($s, AF_INET, SOCK_STREAM, 0) && setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1) && bind($s, sockaddr_in($_, INADDR_ANY))
    && listen($s, SOMAXCONN) or die "$_: $!\n";
  push @open, $s;
}
print "listening\n"; sleep 600'

declare -A ASKED=() ADDRESS_OF=()
declare -a NODES=() MOUNTS=() LISTENERS=()
GPU_BRAND='' # as an image's NVIDIA_REQUIRE_CUDA has it: nvidia, tesla, geforce

doctor::node() { printf '%s' "${SLURMD_NODENAME:-${HOSTNAME}}"; }

# doctor::say FACT VALUE... - tabs and line ends are what parts fields and lines.
doctor::say() {
  local line field
  line="$(doctor::node)"
  for field in "$@"; do line+=$'\t'"${field//[$'\t\n']/ }"; done
  printf '%s\n' "${line:0:900}" # srun hands on lines of up to 1024 bytes in one piece
}

# doctor::last - the last line of the input, for an error's words.
doctor::last() { grep -v '^[[:space:]]*$' | tail -n 1; }

# ---------------------------------------------------------------- this node alone

doctor::tools() {
  local tool version
  for tool in apptainer enroot docker podman; do
    command -v "${tool}" >/dev/null || continue
    version="$(timeout 10 "${tool}" --version 2>/dev/null)" || version="$(timeout 10 "${tool}" version 2>/dev/null)" || version=unknown
    version="$(head -n 1 <<<"${version}")"
    version="${version##*ersion }"
    doctor::say tool "${tool}" "${version%%,*}"
  done
  doctor::engine docker docker info
  doctor::engine podman podman info
}

# doctor::engine NAME COMMAND... - only for kit run, on a machine without Slurm.
doctor::engine() {
  [[ -n "${ASKED[engines]:-}" ]] && command -v "$1" >/dev/null || return 0
  local said
  if said="$(timeout 15 "${@:2}" 2>&1 >/dev/null)"; then doctor::say engine "$1" ok; else doctor::say engine "$1" "$(doctor::last <<<"${said}")"; fi
}

# Enroot, and Apptainer without its setuid part, are the user's own user namespace.
doctor::namespaces() {
  local said folder
  if ! command -v unshare >/dev/null; then
    doctor::say namespaces unknown
  elif said="$(timeout 5 unshare --user --map-root-user true 2>&1)"; then
    doctor::say namespaces ok
  else
    doctor::say namespaces "$(doctor::last <<<"${said}")"
  fi
  folder="$(timeout 10 apptainer buildcfg 2>/dev/null | sed -n 's/^LIBEXECDIR=//p')"
  [[ ! -u "${folder}/apptainer/bin/starter-suid" ]] || doctor::say setuid "${folder}/apptainer/bin/starter-suid"
  local kind
  for kind in subuid subgid; do
    doctor::say "${kind}" "$(grep -sE "^($(id -un)|${UID}):" "/etc/${kind}" | head -n 1)"
  done
}

# doctor::place FACT FOLDER - what is written there ends up where: of the folder, or the nearest one above it that exists.
doctor::place() {
  local -r fact="$1" folder="$2"
  local there="$2" type free inodes total able=yes
  while [[ ! -e "${there}" && "${there}" == */* && -n "${there%/*}" ]]; do there="${there%/*}"; done
  read -r type free inodes total < <(timeout 5 df --output=fstype,avail,iavail,itotal --block-size=1048576 -- "${there}" 2>/dev/null | tail -n 1)
  if [[ ! -d "${there}" ]]; then
    able="${there} is not a folder"
  elif [[ ",$(findmnt --noheadings --output OPTIONS --target "${there}" 2>/dev/null)," == *,ro,* ]]; then
    able='it is mounted read-only'
  elif [[ ! -w "${there}" || ! -x "${there}" ]]; then
    able="$(doctor::mode "${there}")"
  fi
  doctor::say "${fact}" "${folder}" "${there}" "${able}" "${type:-unknown}" "${free:--}" "${inodes:--}" "${total:--}"
}

doctor::mode() { stat --format='%n is of %U:%G with mode %a' -- "$1" 2>/dev/null; }

# As runtimes/enroot.sh would choose them.
doctor::scratch() {
  local -r scratch="${ASKED[scratch]:-/tmp}"
  local mine="${scratch}/kit-${UID}" site='' data
  doctor::place scratch "${scratch}"
  [[ -d "${scratch}" ]] || doctor::say scratch-missing "${scratch}"
  if [[ -e "${mine}" || -L "${mine}" ]] && [[ ! -O "${mine}" || -L "${mine}" || (-w "${scratch}" && ! -w "${mine}") ]]; then
    doctor::say scratch-owner "$(doctor::mode "${mine}")"
  fi
  data="${ENROOT_DATA_PATH:-}"
  if command -v enroot >/dev/null; then
    site="$(env -u ENROOT_DATA_PATH timeout 10 enroot info 2>/dev/null | sed -n 's/^ *ENROOT_DATA_PATH=//p')"
    [[ -n "${data}${ASKED[scratch]:-}" || -z "${site}" || ! -O "${site}" || ! -w "${site}" ]] || data="${site}"
    data="${data:-${mine}/enroot/data}"
    doctor::place containers "${data}"
    [[ ! -e "${data}" || -O "${data}" ]] || doctor::say containers-owner "$(doctor::mode "${data}")"
  fi
  doctor::half_made "${mine}/enroot/data" ${data:+"${data}"} ${site:+"${site}"}
}

# doctor::half_made FOLDER... - containers of kit's that nobody is making any more, and that are not whole.
doctor::half_made() {
  local folder path name
  while read -r folder; do
    for path in "${folder}"/.kit-*.unfinished "${folder}"/.pyxis_kit-*.unfinished "${folder}"/kit-* "${folder}"/pyxis_kit-*; do
      [[ -d "${path}" && ! -e "${path}/.kit-complete" ]] || continue
      name="${path##*/}" name="${name#.}" name="${name%.unfinished}"
      # What is being made at this moment is locked. Nothing is opened for writing here.
      [[ ! -r "${folder}/.${name}.lock" ]] || flock --nonblock "${folder}/.${name}.lock" true 2>/dev/null || continue
      doctor::say half-made "${path}"
    done
  done < <(printf '%s\n' "$@" | sort -u)
}

doctor::limits() {
  doctor::say limit memlock "$(ulimit -S -l)" "$(ulimit -H -l)"
  doctor::say limit nofile "$(ulimit -S -n)" "$(ulimit -H -n)"
  doctor::say limit nproc "$(ulimit -S -u)" "$(ulimit -H -u)"
  local size free
  read -r size free < <(timeout 5 df --output=size,avail --block-size=1048576 -- /dev/shm 2>/dev/null | tail -n 1)
  doctor::say shm "${size:-0}" "${free:-0}" "$(doctor::shm_problem)"
  local version=none
  [[ ! -d /sys/fs/cgroup/freezer && ! -d /sys/fs/cgroup/memory ]] || version=v1
  [[ ! -e /sys/fs/cgroup/cgroup.controllers ]] || version=v2
  doctor::say cgroups "${version}" "$(grep -sc slurm /proc/self/cgroup)"
}

doctor::shm_problem() { [[ -d /dev/shm && -w /dev/shm ]] || doctor::mode /dev/shm || printf 'there is none'; }

doctor::gpus() {
  local -a cards=(/proc/driver/nvidia/gpus/*/)
  [[ -d "${cards[0]}" ]] || cards=()
  local said cuda driver
  if command -v nvidia-smi >/dev/null; then
    if said="$(timeout 10 nvidia-smi --list-gpus 2>&1)"; then
      doctor::say gpus "$(grep -c '^GPU ' <<<"${said}")" "${#cards[@]}"
      said="$(timeout 10 nvidia-smi 2>/dev/null)"
      driver="$(sed -n 's/.*Driver Version: *\([0-9.]*\).*/\1/p' <<<"${said}" | head -n 1)"
      cuda="$(sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' <<<"${said}" | head -n 1)"
      GPU_BRAND="$(timeout 10 nvidia-smi -q 2>/dev/null | sed -n 's/.*Product Brand *: *//p' | head -n 1)"
      GPU_BRAND="${GPU_BRAND,,}" GPU_BRAND="${GPU_BRAND// /}"
      [[ -z "${driver}" ]] || doctor::say driver "${driver}" "${cuda}" "${GPU_BRAND}"
    else
      doctor::say gpus 0 "${#cards[@]}" "nvidia-smi: $(doctor::last <<<"${said}")"
    fi
  elif [[ -e /dev/kfd ]]; then
    doctor::say gpus "$(grep -ls '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties | wc -l)" 0
  else
    doctor::say gpus 0 "${#cards[@]}" 'there is no nvidia-smi'
  fi
}

# ---------------------------------------------------------------- what all nodes share

doctor::shared() {
  local -r folder="${ASKED[folder]:-}" mark="${ASKED[mark]:-}"
  local said problem
  if [[ -n "${folder}" ]]; then
    if ! timeout 5 test -d "${folder}"; then
      doctor::say folder missing
    elif ! said="$(timeout 5 cat -- "${mark}" 2>&1)" || [[ "${said}" != "${ASKED[text]}" ]]; then
      doctor::say folder other "${said}"
    elif problem="$( (: >>"${mark}") 2>&1)"; then # opened for writing; nothing is written
      doctor::say folder ok "$(timeout 5 df --output=fstype -- "${folder}" 2>/dev/null | tail -n 1)"
    else
      doctor::say folder read-only "${problem##*: }"
    fi
  fi
  local source
  for source in "${MOUNTS[@]}"; do
    if ! timeout 5 test -e "${source}"; then
      doctor::say mount missing "${source}"
    elif ! timeout 5 test -r "${source}"; then
      doctor::say mount unreadable "$(doctor::mode "${source}")"
    fi
  done
}

doctor::image() {
  local -r image="${ASKED[image]}" start="${ASKED[start]:-}"
  if [[ "${start}" == @(docker|podman) ]]; then
    # One that is not here yet is pulled at the start.
    if "${start}" image inspect "${image#docker://}" >/dev/null 2>&1; then doctor::start; else doctor::say image remote; fi
    return
  fi
  if ! timeout 5 test -r "${image}"; then
    doctor::say image missing
    return
  fi
  if [[ -f "${image}" && -n "${ASKED[fingerprint]:-}" && "$(image::fingerprint "${image}" 2>/dev/null)" != "${ASKED[fingerprint]}" ]]; then
    doctor::say image other
    return
  fi
  doctor::say image ok
  if [[ "${start}" == apptainer ]] && command -v apptainer >/dev/null; then
    doctor::start
  elif [[ "${start}" == @(enroot|pyxis) && -f "${image}" ]]; then
    doctor::list
  fi
}

# ---------------------------------------------------------------- what the job starts

# doctor::find PROGRAM MODULE PATH - what the launcher would find: in the image, or on the node itself where the job has none. Without a
# name it looks for no program, or no module. A mark in front tells its lines from what a container says by itself.
doctor::find() {
  local compat
  inside::find_python ${2:+"$2"}
  printf 'kit-python|%s|%s\n' "${KIT_PYTHON}" "${KIT_HAS}"
  [[ -z "$1" ]] || printf 'kit-program|%s\n' "$(PATH="${3:-${PATH}}" type -P -- "$1")"
  compat="$(compgen -G '/usr/local/cuda*/compat/libcuda.so*' || compgen -G '/usr/local/cuda*/compat/*/libcuda.so*')"
  printf 'kit-compat|%s\n' "${compat%%$'\n'*}"
  printf 'kit-cuda|%s|%s\n' "${CUDA_VERSION:-}" "${NVIDIA_REQUIRE_CUDA:-}"
}

# doctor::found - tells what doctor::find printed.
doctor::found() {
  local mark first second
  while IFS='|' read -r mark first second; do
    case "${mark}" in
      kit-python) doctor::say python "${first}" "${second}" ;;
      kit-program) doctor::say program "${first}" ;;
      kit-compat) [[ -z "${first}" ]] || doctor::say image-compat "${first}" ;;
      kit-cuda) [[ -z "${first}" ]] || doctor::say image-cuda "${first}" "$(doctor::drivers "${second}")" ;;
    esac
  done
}

# doctor::drivers NVIDIA_REQUIRE_CUDA - the older drivers that an image says it can do with on GPUs like this node's.
doctor::drivers() {
  [[ -z "${GPU_BRAND}" ]] || grep -oE "brand=${GPU_BRAND},driver>=[0-9]+" <<<"$1" | sed 's/.*=//' | sort -un | tr '\n' ' '
}

# doctor::start - the image, as the job's runtime does.
doctor::start() {
  local -r image="${ASKED[image]}"
  local -a inside=(apptainer --quiet exec --no-home --no-mount cwd --pwd / "${image}" bash)
  [[ "${ASKED[start]}" == apptainer ]] || inside=("${ASKED[start]}" run --rm --network none --entrypoint bash "${image#docker://}")
  local said
  if said="$(
    unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_PRELOAD # as kit::forget_host does
    export PYTHONNOUSERSITE=1
    timeout 60 "${inside[@]}" -c "$(declare -f inside::find_python inside::has_module inside::has_file doctor::find); doctor::find \"\$@\"" \
      bash "${ASKED[program]:-}" "${ASKED[module]:-}" "${ASKED[path]:-}" 2>&1 </dev/null
  )"; then
    doctor::say start ok
    doctor::found <<<"${said}"
  else
    doctor::say start "$(doctor::last <<<"${said}")"
  fi
}

# doctor::list - the same of an image that would have to be unpacked first, by the names of its files: what is nowhere in it is
# missing for certain.
doctor::list() {
  local -r image="${ASKED[image]}" program="${ASKED[program]:-}"
  local said variables
  if ! command -v unsquashfs >/dev/null; then
    doctor::say unpack missing
  elif said="$(timeout 60 unsquashfs -l "${image}" 2>&1 | PROGRAM="${program##*/}" MODULE="${ASKED[module]:-}" doctor::pick)"; then
    doctor::say unpack ok
    variables="$(timeout 60 unsquashfs -cat "${image}" etc/environment 2>/dev/null)"
    doctor::found <<<"${said}
kit-cuda|$(sed -n 's/^CUDA_VERSION="\{0,1\}\([0-9.]*\).*/\1/p' <<<"${variables}")|$(sed -n 's/^NVIDIA_REQUIRE_CUDA=//p' <<<"${variables}")"
  else
    said="$(grep -v '^kit-' <<<"${said}")"
    doctor::say unpack "$(grep -i compress <<<"${said}" | head -n 1)" "$(doctor::last <<<"${said}")"
  fi
}

# doctor::pick - of unsquashfs's list, as doctor::find would print it; and what unsquashfs says else.
doctor::pick() {
  awk '
    !/^squashfs-root/ { print; next }
    { path = substr($0, length("squashfs-root") + 1); name = path; sub(/.*\//, "", name) }
    path ~ /\/bin\/python3?$/ { python = path }
    name == ENVIRON["MODULE"] && path ~ /-packages\/[^\/]*$/ { module = name }
    name == ENVIRON["PROGRAM"] { program = path }
    path ~ /\/cuda[^\/]*\/compat\/.*libcuda[.]so/ { compat = path }
    END {
      print "kit-python|" python "|" module
      if (ENVIRON["PROGRAM"] != "") print "kit-program|" program
      print "kit-compat|" compat
    }'
}

doctor::command() {
  if [[ -n "${ASKED[image]:-}" ]]; then
    doctor::image
  elif [[ -n "${ASKED[command]:-}" ]]; then
    doctor::find "${ASKED[program]:-}" "${ASKED[module]:-}" "${ASKED[path]:-}" | doctor::found
  fi
}

# ---------------------------------------------------------------- the network

doctor::network() {
  local name address state
  while read -r name address; do
    doctor::say interface "${name%@*}" "${address%/*}"
  done < <(ip -4 -oneline address show up scope global 2>/dev/null | awk '{ print $2, $4 }')
  for name in /sys/class/infiniband/*/ports/*; do
    [[ -r "${name}/state" ]] || continue
    state="$(<"${name}/state")"
    address="${name#/sys/class/infiniband/}"
    doctor::say rdma "${address%%/*}" "${state#*: }"
  done
}

# doctor::addresses NODE - of its name, or of what Slurm calls its address, as net::address does.
doctor::addresses() {
  local found
  found="$(net::resolve "$1")"
  [[ -n "${found}" || -z "${ADDRESS_OF[$1]}" ]] || found="$(net::resolve "${ADDRESS_OF[$1]}")"
  [[ -z "${found}" ]] || sort -u <<<"${found}"
}

doctor::names() {
  local name found
  for name in "${NODES[@]}"; do
    found="$(doctor::addresses "${name}")"
    if [[ -z "${found}" ]]; then
      doctor::say unknown-name "${name}"
    elif ! grep -qv '^127[.]' <<<"${found}"; then
      doctor::say loopback-name "${name}" "${found//$'\n'/ }"
    fi
  done
}

# doctor::listen - at the ports that a job's master would take at its first start and at the next ones.
doctor::listen() {
  local restart port said tool
  local -a ports=()
  for restart in 0 1 2; do
    if ! port="$(net::port "${SLURM_JOB_ID:-0}" "${restart}" 127.0.0.1 2>/dev/null)"; then
      doctor::say listener failed 'all ports of the range are in use'
      return
    fi
    ports+=("${port}")
  done
  if command -v perl >/dev/null && coproc LISTENER { exec perl -e "${DOCTOR_LISTEN}" "${ports[@]}" 2>&1; }; then
    LISTENERS=("${LISTENER_PID}")
    IFS= read -r -t 5 -u "${LISTENER[0]}" said || said=''
    if [[ "${said}" == listening ]]; then
      doctor::say listener perl "${ports[@]}"
      return
    elif [[ "${said}" =~ ^[0-9]+:\  ]]; then
      doctor::say listener failed "port ${said}"
      return
    fi
  fi
  for tool in nc ncat; do
    command -v "${tool}" >/dev/null || continue
    for port in "${ports[@]}"; do
      "${tool}" -l -k "${port}" </dev/null >/dev/null 2>&1 &
      LISTENERS+=("$!")
    done
    sleep 0.3
    if net::is_listening 127.0.0.1 "${ports[0]}"; then
      doctor::say listener "${tool}" "${ports[@]}"
      return
    fi
  done
  doctor::say listener none "${ports[@]}" # a refused connection then says that the way is free
}

# doctor::neighbours - the nodes after this one, in a ring, and the first of all, which most masters are.
doctor::neighbours() {
  local -i i self=0
  for i in "${!NODES[@]}"; do [[ "${NODES[i]}" != "$(doctor::node)" ]] || self=i; done
  {
    ((self == 0)) || printf '%s\n' "${NODES[0]}"
    for ((i = 1; i <= DOCTOR_FEW && i < ${#NODES[@]}; i++)); do printf '%s\n' "${NODES[(self + i) % ${#NODES[@]}]}"; done
  } | awk '!seen[$0]++'
}

# doctor::connect NODE:PORT,PORT... - those among them that are this node's neighbours, all at once.
doctor::connect() {
  local -A ports_of=()
  local word node address port
  for word in "$@"; do ports_of["${word%:*}"]="${word##*:}"; done
  while read -r node; do
    [[ -n "${ports_of["${node}"]:-}" ]] || continue
    address="$(doctor::addresses "${node}" | grep -v '^127[.]' | head -n 1)"
    [[ -n "${address}" ]] || continue # told already
    for port in ${ports_of["${node}"]//,/ }; do
      doctor::try "${node}" "${address}" "${port}" &
    done
  done < <(doctor::neighbours)
  local pid
  for pid in $(jobs -p); do
    [[ " ${LISTENERS[*]} " == *" ${pid} "* ]] || wait "${pid}"
  done
}

doctor::try() {
  local said rc=0
  # shellcheck disable=SC2016  # the inner shell expands it
  said="$(timeout "${DOCTOR_CONNECT_S}" bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash "$2" "$3" 2>&1)" || rc=$?
  case "${rc}" in
    0) said=open ;;
    124) said="no answer in ${DOCTOR_CONNECT_S} s" ;;
    *) said="$(head -n 1 <<<"${said}")" said="${said##*: }" ;;
  esac
  doctor::say reach "$1" "$2" "$3" "${said}"
}

# ---------------------------------------------------------------- what kit asks

doctor::answer() {
  local word rest
  while read -r word rest; do
    case "${word}" in
      clock) doctor::say clock "$(date +%s.%N)" ;;
      connect)
        # shellcheck disable=SC2086  # words without spaces
        doctor::connect ${rest}
        doctor::say connected
        ;;
    esac
  done
}

doctor::main() {
  local word
  for word in "$@"; do
    case "${word}" in
      mount=*) MOUNTS+=("${word#*=}") ;;
      [a-z]*=*) ASKED["${word%%=*}"]="${word#*=}" ;;
      *) NODES+=("${word%%:*}") ADDRESS_OF["${word%%:*}"]="${word#*:}" ;;
    esac
  done
  doctor::say user "$(id -un)" "${UID}"
  doctor::say bash "${BASH_VERSION}"
  doctor::tools
  doctor::namespaces
  doctor::scratch
  doctor::limits
  doctor::gpus
  doctor::shared
  doctor::command
  doctor::network
  doctor::names
  doctor::listen
  doctor::say ready
  doctor::answer
  ((${#LISTENERS[@]} == 0)) || kill "${LISTENERS[@]}" 2>/dev/null
  exit 0
}

doctor::main "$@"
