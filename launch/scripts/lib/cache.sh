# shellcheck shell=bash
# shellcheck disable=SC2034  # other files of lib/ read what this one sets
# cache.sh - the caches of compilers in one folder of each node's disk, for each image and kind of machine: docs/compile-caches.md.
# With `cache: keep` the first node packs its folder at the end, and a node whose folder is empty begins with that file.
# only: cache

# shellcheck source=lib/container_name.sh
source "${KIT_RUN_DIR}/lib/container_name.sh"
# shellcheck source=lib/remove.sh
source "${KIT_RUN_DIR}/lib/remove.sh"

# The same on every node. The first one tells it, since root in a container has another number.
KIT_CACHE_ROOT="${KIT_SCRATCH:-/tmp}/kit-${UID}/cache"
KIT_CACHE_FILE='' # with `cache: keep`, on the first node
# Slurm mounts it before a node's own script runs: the folder above those of images and machines, which may differ between nodes.
! declare -F runtime::srun_args >/dev/null || KIT_MOUNTS+=("${KIT_CACHE_ROOT}" "${KIT_CACHE_ROOT}" rw)

# cache::choose - sets KIT_CACHE_DIR, this node's folder for this image.
cache::choose() {
  local image="${KIT_FINGERPRINT:-${KIT_IMAGE:-host}}" machine
  cache::describe_machine
  # A folder or an engine's image has no fingerprint. The compilers' own keys hold the versions: a shared folder is no mistake.
  image="${image//[!a-zA-Z0-9._-]/_}" machine="${machine//[!a-zA-Z0-9._-]/_}"
  ((${#image} <= 60)) || image="${image: -60}"
  KIT_CACHE_DIR="${KIT_CACHE_ROOT}/kit-cache-${image}-${machine:0:100}"
}

# cache::describe_machine - sets the caller's `machine`: the GPU, and the CPU, for which compilers choose instructions, too. Reads
# what the kernel says: nvidia-smi would take longer than all else at a start.
cache::describe_machine() {
  local file line
  machine="${HOSTTYPE}"
  while IFS= read -r line; do
    [[ "${line}" == 'model name'*:* ]] || continue
    machine="${line#*: }"
    break
  done 2>/dev/null </proc/cpuinfo || true
  for file in /proc/driver/nvidia/gpus/*/information /sys/class/kfd/kfd/topology/nodes/*/properties; do
    while IFS= read -r line; do
      [[ "${line}" =~ ^(Model:|gfx_target_version)[[:space:]]+([^0].*)$ ]] || continue
      machine="${BASH_REMATCH[2]}-${machine}"
      return 0
    done 2>/dev/null <"${file}" || true
  done
}

# cache::is_own FOLDER - whether programs may load code from it: nobody else may write there.
cache::is_own() { [[ -d "$1" && -O "$1" && ! -L "$1" && -w "$1" ]]; }

cache::are_own() {
  # Where Slurm has mounted it, the folder above is the container's.
  declare -F runtime::srun_args >/dev/null || cache::is_own "${KIT_CACHE_ROOT%/*}" || return
  cache::is_own "${KIT_CACHE_ROOT}" && cache::is_own "${KIT_CACHE_DIR}"
}

cache::make() (
  umask 077
  mkdir -p -- "${KIT_CACHE_ROOT%/*}" && cache::is_own "${KIT_CACHE_ROOT%/*}" && mkdir -p -- "${KIT_CACHE_DIR}"
) 2>/dev/null

# cache::begin - on the first node: names the file that this job keeps, while KIT_IMAGE is not yet a copy on this node.
cache::begin() {
  cache::choose
  [[ "${KIT_CACHE}" == keep ]] || return 0
  KIT_CACHE_FILE="$(cache::file)"
  [[ ! -O "${KIT_CACHE_FILE}" ]] || touch -c -- "${KIT_CACHE_FILE}" 2>/dev/null || true # its last use, for `kit images gc`
}

# cache::file - prints the file beside the image. Its name has the user's number: others may share the image.
cache::file() {
  local -r image="${KIT_IMAGE%/}"
  printf '%s/%s-%s.tar.gz' "${image%/*}" "${KIT_CACHE_DIR##*/}" "${UID}"
}

# cache::prepare - on every node, before KIT_IMAGE is a copy. A node without a folder goes on: its programs use their own defaults.
cache::prepare() {
  local -r problem="there is no folder of this user's own for compile caches: ${KIT_CACHE_ROOT}"
  local -r fix="free some space there, or name a writable node-local folder in the cluster's profile (\`scratch: /local\`); without it: \`cache: off\`"
  cache::choose
  [[ -d "${KIT_CACHE_DIR}" ]] || cache::make || true
  if ! cache::is_own "${KIT_CACHE_ROOT%/*}" || ! cache::are_own; then
    ! declare -F runtime::srun_args >/dev/null || kit::die "${problem}" "${fix}" # Slurm could not mount it
    kit::warn "${problem}" "${fix}"
    return 0
  fi
  touch -c -- "${KIT_CACHE_DIR}" # its last use, for `kit images gc`
  [[ "${KIT_CACHE}" != keep ]] || cache::seed "$(cache::file)"
}

# cache::use - on a node, where the ranks start: hands the folder on. Inside, cache::set_variables names it.
cache::use() {
  cache::choose
  if ! cache::are_own; then
    KIT_CACHE_DIR=''
  elif [[ "${KIT_RUNTIME}" != none ]] && ! declare -F runtime::srun_args >/dev/null; then
    KIT_MOUNTS+=("${KIT_CACHE_ROOT}" "${KIT_CACHE_ROOT}" rw)
  fi
}

# cache::set_variables - inside the container. What the image or the site says stays, and the job's own variables come last.
cache::set_variables() {
  [[ -n "${KIT_CACHE_DIR:-}" ]] || return 0
  [[ -d "${KIT_CACHE_DIR}/cuda" ]] || mkdir -p -- "${KIT_CACHE_DIR}/cuda" || return 0 # the others make their own folders
  export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-${KIT_CACHE_DIR}/triton}"
  export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${KIT_CACHE_DIR}/inductor}"
  export CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-${KIT_CACHE_DIR}/cuda}"
  # Of several nodes, JAX writes on the first one alone. One that finds a program compiled does not join the others in tuning it.
  ((NNODES > 1)) || export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-${KIT_CACHE_DIR}/jax}"
}

# cache::seed FILE - fills an empty folder with what an earlier job kept. Whatever goes wrong, the job begins cold.
cache::seed() {
  local -r file="$1" unfinished="${KIT_CACHE_ROOT}/.${KIT_CACHE_DIR##*/}.unfinished"
  local lock kept said
  [[ -e "${file}" && ! -e "${KIT_CACHE_DIR}/.kit-kept" ]] || return 0
  if ! { exec {lock}>"$(container_name::lock "${KIT_CACHE_DIR}")"; } 2>/dev/null || ! flock --timeout 300 "${lock}"; then
    kit::warn "the kept compile caches are not used: no lock in ${KIT_CACHE_ROOT}" "see who holds it: fuser ${KIT_CACHE_ROOT}/.*.lock; free some space there"
  elif
    rmdir -- "${KIT_CACHE_DIR}/cuda" 2>/dev/null || true
    [[ -z "$(find "${KIT_CACHE_DIR}" -mindepth 1 -print -quit)" ]]
  then # nobody filled it while we waited
    # A cache is code that the ranks will run. What was opened is looked at: the name may lead to another file by now.
    if [[ ! -f "${file}" ]] || ! { exec {kept}<"${file}"; } 2>/dev/null || [[ ! -f "/dev/fd/${kept}" || ! -O "/dev/fd/${kept}" ]]; then
      kit::warn "the kept compile caches are not used: ${file} is not a readable file of your own" "look at it: ls -l ${file}; remove it, and the next job keeps its own"
    elif ! said="$(cache::unpack 2>&1 <&"${kept}")"; then
      kit::warn "the kept compile caches are not used: ${said##*$'\n'}" "if the file is damaged: rm ${file}; free in ${KIT_CACHE_ROOT}: df -h ${KIT_CACHE_ROOT}"
    fi
    [[ -z "${kept:-}" ]] || exec {kept}<&-
    cache::discard "${unfinished}"
  fi
  [[ -z "${lock:-}" ]] || exec {lock}>&-
}

# cache::unpack - under the lock, from standard input: under another name, then moved over the empty folder, which fails if a program
# has written there meanwhile.
cache::unpack() {
  cache::discard "${unfinished}" && # left by a start that was killed
    (umask 077 && mkdir -- "${unfinished}") &&
    timeout 300 tar --extract --gzip --no-same-owner --no-same-permissions --directory="${unfinished}" &&
    touch -- "${unfinished}/.kit-kept" && # everything before it is in the file
    mv --no-target-directory -- "${unfinished}" "${KIT_CACHE_DIR}"
}

cache::discard() { [[ ! -e "$1" ]] || remove::tree "$1" "\.${KIT_CACHE_NAMES}\.unfinished"; }

# cache::keep CODE - the last that the first node does, when the ranks have ended: in bounded time, and a kill leaves the file as it was.
cache::keep() {
  local -r file="${KIT_CACHE_FILE}" unfinished="${KIT_CACHE_FILE%/*}/.${KIT_CACHE_FILE##*/}.${SLURM_JOB_ID}.unfinished"
  local -r fix="make room there, or copy the image to a folder where you may write; or write \`cache: node\`"
  local -i limit_s=60
  local -a settled=()
  [[ -n "${file}" && -n "${KIT_RANKS_BEGUN_S:-}" ]] && cache::are_own && cache::has_news || return 0
  [[ ! -e "${file}" || -O "${file}" ]] || return 0 # `prepare` has said so
  if [[ ! -w "${file%/*}" ]]; then
    kit::warn "the compile caches are not kept: ${file%/*} is not writable" "${fix}"
    return
  fi
  # A compiler that was killed with its rank may have left half a file under its name; and Slurm may end this script soon.
  (($1 == 0)) || settled=(-mmin +1) limit_s=10
  find "${file%/*}" -maxdepth 1 -name ".${file##*/}.*.unfinished" -user "${UID}" -mmin +60 -delete 2>/dev/null || true # of jobs that were killed
  cache::pack || kit::warn "the compile caches are not kept: ${file} was not written to its end within ${limit_s} s" "${fix}"
  rm -f -- "${unfinished}" "${KIT_CACHE_DIR}/.kit-packing"
}

# cache::pack - writes the file under another name first. What is compiled meanwhile is newer than the mark.
cache::pack() {
  touch -- "${KIT_CACHE_DIR}/.kit-packing" &&
    (cd -- "${KIT_CACHE_DIR}" && umask 077 && find . -type f ! -name '.kit-*' "${settled[@]}" -print0 |
      timeout "${limit_s}" tar --create --use-compress-program='gzip -1' --null --files-from=- --file=- >"${unfinished}") &&
    mv --no-target-directory -- "${unfinished}" "${file}" &&
    mv --no-target-directory -- "${KIT_CACHE_DIR}/.kit-packing" "${KIT_CACHE_DIR}/.kit-kept"
} 2>/dev/null

# cache::has_news - whether the folder holds what the file does not. Locks, which are empty, are no news.
cache::has_news() {
  local -a newer=()
  [[ ! -e "${KIT_CACHE_FILE}" || ! -e "${KIT_CACHE_DIR}/.kit-kept" ]] || newer=(-newer "${KIT_CACHE_DIR}/.kit-kept")
  [[ -n "$(find "${KIT_CACHE_DIR}" -type f -size +0 ! -name '.kit-*' "${newer[@]}" -print -quit 2>/dev/null)" ]]
}
