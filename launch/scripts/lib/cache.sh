# cache.sh - the caches of compilers in one folder of each node's disk, for each image and kind of machine: docs/compile-caches.md.
# only: KIT_CACHE

source "${KIT_RUN_DIR}/lib/scratch.sh"
[[ "${KIT_CACHE:-}" != keep ]] || source "${KIT_RUN_DIR}/lib/kept_cache.sh"

# The same on every node. The first one tells it, since root in a container has another number.
KIT_CACHE_ROOT="${KIT_SCRATCH:-/tmp}/kit-${UID}/cache"

# cache::mount - adds the folder above those of images and machines, which may differ between nodes, to what is mounted.
cache::mount() { KIT_MOUNTS+=("${KIT_CACHE_ROOT}" "${KIT_CACHE_ROOT}" rw); }

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
  machine=''
  while IFS= read -r line; do
    [[ "${line}" == 'model name'*:* ]] || continue
    machine="${line#*: }"
    break
  done 2>/dev/null </proc/cpuinfo || true
  machine="${machine:-${HOSTTYPE}}" # ARM names no model, and a small image may have no uname
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

# cache::begin - on the first node: names the file that this job keeps, while KIT_IMAGE is not yet a copy on this node. Slurm starts the
# containers of all nodes in the same way, so where one node has no folder, no node has.
cache::begin() {
  if declare -F runtime::srun_args >/dev/null && event::of node_ready ready.jsonl | grep '"cache": "no"' >/dev/null; then
    KIT_CACHE=''
    return
  fi
  cache::choose
  [[ "${KIT_CACHE}" == keep ]] || return 0
  KIT_CACHE_FILE="$(kept_cache::file)"
  [[ ! -O "${KIT_CACHE_FILE}" ]] || touch -c -- "${KIT_CACHE_FILE}" 2>/dev/null || true # its last use, for `kit images gc`
}

# cache::prepare - on every node, before KIT_IMAGE is a copy.
cache::prepare() {
  cache::choose
  [[ -d "${KIT_CACHE_DIR}" ]] || cache::make || true
  if ! cache::is_own "${KIT_CACHE_ROOT%/*}" || ! cache::are_own; then
    cache::lack "there is no folder of this user's own for compile caches: ${KIT_CACHE_ROOT}" "free some space there, or name a writable"
  elif scratch::is_noexec "${KIT_CACHE_ROOT}"; then
    cache::lack "${KIT_CACHE_ROOT} is mounted noexec, so no compiled code can be loaded from there" "have it mounted without, or name another"
  else
    touch -c -- "${KIT_CACHE_DIR}" # its last use, for `kit images gc`
    [[ "${KIT_CACHE}" != keep ]] || kept_cache::seed "$(kept_cache::file)"
  fi
}

# cache::lack PROBLEM FIX - lets the node go on without a folder: its programs use their own defaults. Sets KIT_CACHE_LACKS.
cache::lack() {
  KIT_CACHE_LACKS=yes
  kit::warn "$1" "$2 node-local folder in the cluster's profile (\`scratch: /local\`); without it: \`cache: off\`"
}

# cache::use - on a node, where the ranks start: hands the folder on. Inside, cache::set_variables names it.
cache::use() {
  cache::choose
  if ! cache::are_own || scratch::is_noexec "${KIT_CACHE_ROOT}"; then
    KIT_CACHE_DIR=''
  elif [[ "${KIT_RUNTIME}" != none ]] && ! declare -F runtime::srun_args >/dev/null; then
    cache::mount
  fi
}

# cache::set_variables - inside the container. What the image or the site says stays, and the job's own variables come last.
cache::set_variables() {
  [[ -n "${KIT_CACHE_DIR:-}" ]] || return 0
  [[ -d "${KIT_CACHE_DIR}/cuda" ]] || mkdir -p -- "${KIT_CACHE_DIR}/cuda" || return 0 # the others make their own folders
  export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-${KIT_CACHE_DIR}/triton}"
  export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${KIT_CACHE_DIR}/inductor}"
  export CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-${KIT_CACHE_DIR}/cuda}"
  # MIOpen's databases, of AMD's GPUs, are locked, which some shared file systems refuse.
  [[ ! -e /dev/kfd ]] || export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-${KIT_CACHE_DIR}/miopen}" MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-${KIT_CACHE_DIR}/miopen}"
  # Of several nodes, JAX writes on the first one alone. One that finds a program compiled does not join the others in tuning it.
  ((NNODES > 1)) || export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-${KIT_CACHE_DIR}/jax}"
  if [[ "${KIT_RUNTIME}" != none && -z "${PYTHONPYCACHEPREFIX:-}" ]] && cache::lacks_bytecode; then
    export PYTHONPYCACHEPREFIX="${KIT_CACHE_DIR}/python"
    unset PYTHONDONTWRITEBYTECODE # which keeps images small, and is in many
  fi
}

# cache::lacks_bytecode - whether torch was installed without bytecode, as uv does. A container is mostly read-only or new, so every process
# would compile torch again, at every start. Where an image has bytecode, Python must find it there.
cache::lacks_bytecode() {
  local kit_folder kit_path
  local -a kit_folders
  program::choose_path
  kit::split kit_folders : "${kit_path}"
  for kit_folder in "${kit_folders[@]}"; do
    [[ -x "${kit_folder}/python3" || -x "${kit_folder}/python" ]] || continue
    program::has_file "${kit_folder}/python3" torch/__init__.py || continue
    ! program::has_file "${kit_folder}/python3" 'torch/__pycache__/__init__.*.pyc'
    return
  done
  return 1
}
