# shellcheck shell=bash
# runtimes/apptainer.sh - runs the image file as it is; there is nothing to create.
# images: .sif .sqsh .squashfs folder

runtime::check() {
  command -v apptainer >/dev/null ||
    kit::die "apptainer is not installed here" "install it on every node (module load apptainer?), or choose another runtime"
  [[ -r "${KIT_IMAGE}" ]] ||
    kit::die "the image ${KIT_IMAGE} does not exist here or cannot be read" "put it on a file system that every node sees"
}

runtime::prepare() {
  # The host's environment reaches the container, and paths into the host's Python would break the image's.
  unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_PRELOAD
}

runtime::exec() {
  # Without --no-home, packages in ~/.local shadow those of the image.
  local -a args=(--no-home --cwd "${KIT_WORKDIR}")
  [[ ! -e /dev/nvidiactl ]] || args+=(--nv)
  [[ ! -e /dev/kfd ]] || args+=(--rocm)
  [[ -z "${KIT_REMAP_ROOT}" ]] || args+=(--fakeroot)
  local -i i
  local mount
  for ((i = 0; i < ${#KIT_MOUNTS[@]}; i += 3)); do
    # --mount reads a line of CSV: quoted fields keep commas, colons and spaces; a quote is doubled.
    mount="type=bind,\"source=${KIT_MOUNTS[i]//\"/\"\"}\",\"destination=${KIT_MOUNTS[i + 1]//\"/\"\"}\""
    [[ "${KIT_MOUNTS[i + 2]}" != ro ]] || mount+=",ro"
    args+=(--mount "${mount}")
  done
  exec apptainer --quiet exec "${args[@]}" "${KIT_IMAGE}" "$@"
}
