# sif.sh - runs an image file as it is, by Apptainer or by SingularityCE, which have the same options: by the command KIT_TOOL.

source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/mount_points.sh"

runtime::check() {
  local other=singularity
  [[ "${KIT_TOOL}" == apptainer ]] || other=apptainer
  command -v "${KIT_TOOL}" >/dev/null ||
    kit::die "${KIT_TOOL} is not installed here" "install it on every node (module load ${KIT_TOOL}?), or choose another: \`runtime: ${other}\` if that is there" runtime-missing
  image::check
}

runtime::prepare() { :; }

runtime::exec() {
  local -r kit_temporary="$(LC_ALL=C && printf '%s' "${KIT_TOOL^^}")_TMPDIR" # Turkish has another capital i
  [[ -z "${TMPDIR:-}" ]] || export "${kit_temporary}=${!kit_temporary:-${TMPDIR}}"
  # The job's lines for its nodes, such as a site's module, may have words for the container; those of the user's shell are gone by now.
  [[ ! -e "${KIT_RUN_DIR}/host_setup.sh" ]] || KIT_RUNTIME_READS='APPTAINERENV_*|SINGULARITYENV_*'
  environment::forget_host
  # Without --no-home, packages in ~/.local shadow those of the image. --pwd is --cwd, known to old versions, too.
  # The current folder is mounted below, if the job sees it.
  local -a kit_args=(--no-home --no-mount cwd --pwd "${KIT_WORKDIR}")
  [[ ! -e /dev/nvidiactl && ! -e /dev/dxg ]] || kit_args+=(--nv)
  [[ ! -e /dev/kfd ]] || kit_args+=(--rocm)
  [[ -z "${KIT_REMAP_ROOT}" ]] || kit_args+=(--fakeroot)
  local -i kit_i
  local kit_mount
  for ((kit_i = 0; kit_i < ${#KIT_MOUNTS[@]}; kit_i += 3)); do
    # --mount reads a line of CSV: quoted fields keep commas, colons and spaces; a quote is doubled.
    kit_mount="type=bind,\"source=${KIT_MOUNTS[kit_i]//\"/\"\"}\",\"destination=${KIT_MOUNTS[kit_i + 1]//\"/\"\"}\""
    case "${KIT_MOUNTS[kit_i + 2]}" in
      ro) kit_mount+=",ro" ;;
      data) kit_mount+=",image-src=/,ro" ;;
    esac
    mount_points::make "${kit_i}"
    kit_args+=(--mount "${kit_mount}")
  done
  exec "${KIT_TOOL}" --quiet exec "${kit_args[@]}" "${KIT_IMAGE}" "$@"
}

# Without that program, a container is the user's own user namespace.
runtime::setuid() {
  local folder
  folder="$(timeout 10 "${KIT_TOOL}" buildcfg 2>/dev/null | sed -n 's/^LIBEXECDIR=//p')"
  [[ ! -u "${folder}/${KIT_TOOL}/bin/starter-suid" ]] || printf '%s\n' "${folder}/${KIT_TOOL}/bin/starter-suid"
}

runtime::bare_shell() { KIT_SHELL=("${KIT_TOOL}" --quiet exec --no-home --no-mount cwd --pwd / "${KIT_IMAGE}" bash); }
