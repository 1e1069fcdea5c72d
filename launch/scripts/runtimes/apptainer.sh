# shellcheck shell=bash
# runtimes/apptainer.sh - runs the image file as it is; there is nothing to create.
# images: .sif .sqsh .squashfs folder

runtime::check() {
  command -v apptainer >/dev/null ||
    kit::die "apptainer is not installed here" "install it on every node (module load apptainer?), or choose another runtime"
  image::check
}

runtime::prepare() { :; }

runtime::exec() {
  [[ -z "${TMPDIR:-}" ]] || export APPTAINER_TMPDIR="${APPTAINER_TMPDIR:-${TMPDIR}}"
  kit::forget_host
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
