# shellcheck shell=bash
# runtimes/pyxis.sh - Slurm's plug-in starts the step inside the container: srun --container-image.
# images: .sqsh .squashfs
# tool: enroot
# srun-option: --container-image
# auto: 2
# user-namespaces: yes
# unpacks: yes
# mounts-refuse: space colon comma backslash dollar backtick quote

# shellcheck source=lib/enroot.sh
source "${KIT_RUN_DIR}/lib/enroot.sh"

# shellcheck source=lib/image.sh
source "${KIT_RUN_DIR}/lib/image.sh"

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
    --container-name="$(container_name::of_image)${own}" # under a name that exists, Pyxis ignores the image
    --container-workdir="${KIT_RUN_DIR}"                 # where run_script.sh finds itself
    --container-writable
    --no-container-mount-home
    --no-container-entrypoint
  )
  [[ -z "${flags}" ]] || KIT_SRUN_ARGS+=(--container-mounts="${flags}")
  [[ -z "${KIT_REMAP_ROOT}" ]] || KIT_SRUN_ARGS+=(--container-remap-root)
  pyxis::check_version "${help}"
}

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
  ! pyxis::scope_is_job || return 0
  ENROOT_DATA_PATH="$(enroot::site_data_path)" || return 0 # then it is for Pyxis to create
  enroot::ensure "pyxis_$(container_name::of_image)"       # as Pyxis calls it
}

# Slurm's configuration is in /etc/slurm, or where slurmctld hands it out, in /run/slurm/conf.
pyxis::scope_is_job() {
  grep -rqsE '^[^#]*container_scope=job' /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d /run/slurm/conf/plugstack.conf
}

runtime::exec() { exec "$@"; }

runtime::folders() { enroot::site_data_path || true; } # else Pyxis makes its own
