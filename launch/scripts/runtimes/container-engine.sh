# runtimes/container-engine.sh - CSCS's Container Engine: Slurm's plug-in starts the step inside the container that an environment
# definition file (EDF) describes: srun --environment.
# images: .toml
# tool: enroot
# srun-option: --environment
# auto: 5
# remap-root: no
# mounts-refuse: space colon comma backslash dollar backtick quote

source "${KIT_RUN_DIR}/lib/image.sh"

KIT_RUNTIME_READS='EDF_*|SCRATCH' # where it looks for files and keeps images, and what most files name

# On the first node. The user's file says which image it is, and what the site mounts and injects; what is of this run comes on top.
runtime::srun_args() {
  local -r file="${KIT_LOG_DIR}/edf.toml"
  local -i i
  [[ "$(srun --help 2>&1 || true)" == *--environment* ]] ||
    kit::die "srun has no --environment here: the Container Engine is not set up" "name an image file (.sqsh, .sif) instead of ${KIT_IMAGE##*/}; what runs it here: kit doctor" runtime-missing
  {
    printf 'base_environment = "%s"\n' "$(edf::quote "${KIT_IMAGE}")"
    printf 'workdir = "%s"\nwritable = true\nentrypoint = false\nmounts = [\n' "$(edf::quote "${KIT_RUN_DIR}")"
    for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
      printf '  "%s:%s%s",\n' "${KIT_MOUNTS[i]}" "${KIT_MOUNTS[i + 1]}" "$([[ "${KIT_MOUNTS[i + 2]}" != ro ]] || printf ':ro')"
    done
    printf ']\n'
  } >"${file}.$$"
  mv -- "${file}.$$" "${file}" # a node may be reading the one that is there
  environment::forget_host
  export ENROOT_LOGIN_SHELL=no # a login shell would reset the image's PATH
  KIT_SRUN_ARGS=(--environment="${file}")
}

# edf::quote TEXT - as it stands in a string of such a file, where ${NAME} is a variable.
edf::quote() {
  local text="${1//\\/\\\\}"
  text="${text//\"/\\\"}"
  printf '%s' "${text//$/\$\$}"
}

runtime::check() { image::check; }
runtime::prepare() { :; } # the plug-in pulls the image, and mounts it
runtime::exec() { exec "$@"; }
runtime::bare_shell() { return 1; } # Slurm alone starts this container, so `kit doctor` does not look into it
