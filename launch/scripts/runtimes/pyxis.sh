# runtimes/pyxis.sh - Slurm's plug-in starts the step inside the container: srun --container-image.
# images: .sqsh .squashfs
# tool: enroot
# srun-option: --container-image
# auto: 2
# user-namespaces: yes
# unpacks: yes
# mounts-image: for-node
# mounts-refuse: space colon comma backslash dollar backtick quote

source "${KIT_RUN_DIR}/lib/enroot.sh"
source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/mounted_image.sh"

readonly PYXIS_MOUNTS_NOT="kit finds no use_squashfuse=1 in plugstack.conf (Pyxis 0.22 and later)"

# On the first node. The job's variables need no --container-env: the launcher's script sets them inside, last.
runtime::srun_args() {
  environment::forget_host
  enroot::set_devices
  # Pyxis hands it on. A login shell would reset the image's PATH, and end where the image's HOME is missing.
  export ENROOT_LOGIN_SHELL=no
  local flags='' own='' help
  local -i i
  help="$(srun --help 2>&1 || true)"
  # Pyxis would enter the container of another job that runs under this name, and leave out the mounts of this one. It can be told
  # not to since 0.14; of that its help says nothing, but it names what came next.
  [[ "${help}" != *--container-env* ]] || own=:no_exec
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    flags+="${flags:+,}${KIT_MOUNTS[i]}:${KIT_MOUNTS[i + 1]}:${KIT_MOUNTS[i + 2]}"
  done
  KIT_SRUN_ARGS=(
    --container-image="${KIT_IMAGE}"
    --container-workdir="${KIT_RUN_DIR}" # where run_script.sh finds itself
    --container-writable
    --no-container-mount-home
    --no-container-entrypoint
  )
  # Under a name that exists, Pyxis ignores the image. It mounts what has no name.
  [[ "${KIT_UNPACK:-yes}" == no ]] || KIT_SRUN_ARGS+=(--container-name="$(pyxis::name)${own}")
  [[ -z "${flags}" ]] || KIT_SRUN_ARGS+=(--container-mounts="${flags}")
  [[ -z "${KIT_REMAP_ROOT}" ]] || KIT_SRUN_ARGS+=(--container-remap-root)
  pyxis::check_version "${help}"
}

# pyxis::name - that of the image's container, for this user: some sites have one folder for the containers of all users, and only who
# unpacked one can start it.
pyxis::name() { printf '%s-%s' "$(kept_container::name)" "${UID}"; }

# pyxis::check_version HELP - old versions lack some of these, and srun would only say that it does not know the option.
pyxis::check_version() {
  local -r help="$1"
  local option
  [[ "${help}" == *--container-image* ]] ||
    kit::die "srun has no --container-image here: Pyxis is not set up" "use \`runtime: enroot\` or apptainer" runtime-missing
  for option in "${KIT_SRUN_ARGS[@]%%=*}"; do
    [[ "${help}" == *"${option}"* ]] ||
      kit::die "the Pyxis of this site is too old: its srun has no ${option}" "use \`runtime: enroot\`, or have Pyxis 0.11 or later installed" runtime-missing
  done
}

runtime::check() {
  command -v enroot >/dev/null ||
    kit::die "enroot is not installed here, and Pyxis needs it" "install it on every node" runtime-missing
  image::check
  # Pyxis uses the paths of the site's enroot.conf, whatever this user's environment says.
  unset ENROOT_DATA_PATH ENROOT_RUNTIME_PATH ENROOT_CACHE_PATH ENROOT_TEMP_PATH
}

# Made before Pyxis looks for it: Pyxis itself creates without a lock, and leaves a half-made container under its
# name when a job is cancelled. With container_scope=job it makes its own for every job, and so must it be.
runtime::prepare() {
  local name
  name="pyxis_$(pyxis::name)" # as Pyxis calls it
  ENROOT_DATA_PATH=''
  [[ "${KIT_UNPACK:-yes}" == no ]] || ENROOT_DATA_PATH="$(enroot::site_data_path)" || true
  if pyxis::is_mounted "${name}" && pyxis::settle; then return; fi
  ! pyxis::says container_scope job || return 0
  if [[ -n "${ENROOT_DATA_PATH}" ]]; then
    enroot::ensure "${name}"
  else # no folder here in which kit may make it: Pyxis does, or has done so for an earlier job
    enroot::open_folders "$(enroot::configured)/${name}"
  fi
}

# pyxis::is_mounted NAME - whether this node is to mount the image, which it need not where it has a container of it.
pyxis::is_mounted() {
  case "${KIT_UNPACK_ON_ALL:-${KIT_UNPACK:-yes}}" in
    yes) return 1 ;;
    no) return 0 ;;
  esac
  [[ -z "${ENROOT_DATA_PATH}" ]] || ! kept_container::is_whole "${ENROOT_DATA_PATH}/$1"
}

# pyxis::settle - whether this node mounts the image. Pyxis skips the entrypoint by /etc/rc.local, which the image's /etc/rc has to read,
# as all that Enroot makes does.
pyxis::settle() {
  # shellcheck disable=SC2016 # the container's shell expands it
  local -r check='[[ ! -e /etc/rc || "$(</etc/rc)" == *rc.local* ]] || { echo "its /etc/rc would start its entrypoint" && exit 1; }'
  if pyxis::mounts; then
    mounted_image::settle "${check}"
  else
    KIT_WHY_NOT="${PYXIS_MOUNTS_NOT}"
    mounted_image::refuse
  fi
}

# runtime::agree - on the first node, when all are ready: Slurm starts the containers of all nodes in the same way, so that all mount
# the image or none does.
runtime::agree() {
  local -i mounted known
  local answers
  [[ "${KIT_UNPACK:-yes}" == auto ]] || return 0
  answers="$(event::of node_ready ready.jsonl)"
  known="$(grep -c . < <(printf '%s\n' "${answers}"))" || true # fewer where the disk is full
  mounted="$(grep -c '"mounted": "yes"' < <(printf '%s\n' "${answers}"))" || true
  if ((mounted >= NNODES)); then
    KIT_UNPACK=no
    return
  fi
  KIT_UNPACK=yes
  ((mounted > 0 || known < NNODES)) || return 0
  kit::say "${mounted} of ${NNODES} nodes mount the image, and the others cannot or have unpacked it before: unpacking it on all of them"
  export KIT_UNPACK_ON_ALL=yes
  ready::wait_for_nodes
}

pyxis::mounts() { pyxis::says use_squashfuse '(1|[yY]([eE][sS])?|[tT]([rR][uU][eE])?)'; }

# pyxis::says NAME VALUE - whether the site sets it. Slurm's configuration is in /etc/slurm, where slurmctld hands it out in
# /run/slurm/conf, or where slurmd says. -R: Pyxis has its own file linked there.
pyxis::says() {
  local folder
  for folder in /etc/slurm /run/slurm/conf ${SLURM_CONF:+"${SLURM_CONF%/*}"}; do
    ! grep -RqsE "^[^#]*$1=$2([[:space:]]|\$)" "${folder}/plugstack.conf" "${folder}/plugstack.conf.d" || return 0
  done
  return 1
}

runtime::exec() { exec "$@"; }

runtime::folders() { enroot::site_data_path || true; } # else Pyxis makes its own

runtime::cannot_mount() {
  if pyxis::mounts; then mounted_image::missing; else printf '%s\n' "${PYXIS_MOUNTS_NOT}"; fi
}
