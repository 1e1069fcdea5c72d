# shellcheck shell=bash
# runtimes/apptainer.sh - runs the image file as it is; there is nothing to create.
# images: .sif .sqsh .squashfs folder
# tool: apptainer
# auto: 3
# user-namespaces: unless-setuid

# shellcheck source=lib/image.sh
source "${KIT_RUN_DIR}/lib/image.sh"

runtime::check() {
  command -v apptainer >/dev/null ||
    kit::die "apptainer is not installed here" "install it on every node (module load apptainer?), or choose another runtime" runtime-missing
  image::check
}

runtime::prepare() { :; }

runtime::exec() {
  [[ -z "${TMPDIR:-}" ]] || export APPTAINER_TMPDIR="${APPTAINER_TMPDIR:-${TMPDIR}}"
  environment::forget_host
  # Without --no-home, packages in ~/.local shadow those of the image. --pwd is --cwd, known to old versions, too.
  # The current folder is mounted below, if the job sees it.
  local -a kit_args=(--no-home --no-mount cwd --pwd "${KIT_WORKDIR}")
  [[ ! -e /dev/nvidiactl ]] || kit_args+=(--nv)
  [[ ! -e /dev/kfd ]] || kit_args+=(--rocm)
  [[ -z "${KIT_REMAP_ROOT}" ]] || kit_args+=(--fakeroot)
  local -i kit_i
  local kit_mount
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    # --mount reads a line of CSV: quoted fields keep commas, colons and spaces; a quote is doubled.
    kit_mount="type=bind,\"source=${KIT_MOUNTS[kit_i]//\"/\"\"}\",\"destination=${KIT_MOUNTS[kit_i + 1]//\"/\"\"}\""
    [[ "${KIT_MOUNTS[kit_i + 2]}" != ro ]] || kit_mount+=",ro"
    kit_args+=(--mount "${kit_mount}")
  done
  exec apptainer --quiet exec "${kit_args[@]}" "${KIT_IMAGE}" "$@"
}

# Without it, a container is the user's own user namespace.
runtime::setuid() {
  local folder
  folder="$(timeout 10 apptainer buildcfg 2>/dev/null | sed -n 's/^LIBEXECDIR=//p')"
  [[ ! -u "${folder}/apptainer/bin/starter-suid" ]] || printf '%s\n' "${folder}/apptainer/bin/starter-suid"
}

# shellcheck disable=SC2034  # contents.sh reads it
runtime::bare_shell() { KIT_SHELL=(apptainer --quiet exec --no-home --no-mount cwd --pwd / "${KIT_IMAGE}" bash); }
