# contents.sh - whether what a job starts is there: in its image, or on the node where it has none. A part of probe.sh.

source "${KIT_RUN_DIR}/lib/image_variables.sh"
source "${KIT_RUN_DIR}/lib/program.sh"

contents::look() {
  [[ -z "${ASKED[torch]:-}" ]] || contents::torch
  if [[ -z "${KIT_IMAGE}" ]]; then
    [[ -z "${ASKED[command]:-}" ]] || contents::find "${ASKED[program]:-}" "${ASKED[module]:-}" "${ASKED[path]:-}" "${KIT_FABRIC}" "${ASKED[pythonpath]:-}" | contents::tell
  elif [[ "${KIT_IMAGE}" == *://* ]] || contents::check_file; then
    runtimes::ask contents::of_image
  fi
}

# contents::torch - prints the version of torch in the Python that a job without a container would use.
contents::torch() {
  program::find_python torch
  [[ -z "${KIT_HAS}" ]] ||
    probe::say torch "${KIT_PYTHON}" "$(timeout 20 "${KIT_PYTHON}" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null)"
}

# contents::check_file - checks that this node sees the image, and that it is the same file.
contents::check_file() {
  if ! timeout 5 test -r "${KIT_IMAGE}"; then
    probe::say image missing
  elif [[ -f "${KIT_IMAGE}" && -n "${ASKED[fingerprint]:-}" && "$(image::fingerprint "${KIT_IMAGE}" 2>/dev/null)" != "${ASKED[fingerprint]}" ]]; then
    probe::say image other
  else
    probe::say image ok
    return 0
  fi
  return 1
}

# contents::of_image NAME - beside the functions of a runtime's file: what is in the image, if this runtime is to start it.
contents::of_image() {
  local -a KIT_SHELL=()
  [[ "$1" == "${ASKED[start]:-}" ]] || return 0
  if ! runtime::bare_shell; then
    probe::say image remote
  elif ((${#KIT_SHELL[@]} == 0)); then
    [[ ! -f "${KIT_IMAGE}" ]] || contents::list
  elif command -v "${KIT_SHELL[0]}" >/dev/null; then
    contents::start
  fi
}

# contents::start - the image, as the runtime does.
contents::start() {
  local said name
  if said="$(
    # What breaks the image's Python and tools, of all that environment::forget_host drops.
    unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_PRELOAD
    while read -r _ _ name; do export -nf "${name?}"; done < <(declare -Fx)
    export PYTHONNOUSERSITE=1
    timeout 60 "${KIT_SHELL[@]}" -c "$(program::functions && declare -f fabric::find_lacks fabric::find_folders fabric::has fabric::can_open contents::find); contents::find \"\$@\"" \
      bash "${ASKED[program]:-}" "${ASKED[module]:-}" "${ASKED[path]:-}" "${KIT_FABRIC}" "${ASKED[pythonpath]:-}" 2>&1 </dev/null
  )"; then
    probe::say start ok
    contents::tell <<<"${said}"
  else
    probe::say start "$(kit::last_line <<<"${said}")"
  fi
}

# contents::find PROGRAM MODULE PATH FABRIC PYTHONPATH - what the launcher would find: in the image, or on the node itself where the job has none. Without
# a name it looks for no program, or no module. A mark in front tells its lines from what a container says by itself.
contents::find() {
  local compat
  local -a KIT_ENV=(${3:+"PATH=$3"} ${5:+"PYTHONPATH=$5"})
  program::find_python ${2:+"$2"}
  printf 'kit-python|%s|%s\n' "${KIT_PYTHON}" "${KIT_HAS}"
  [[ -z "$1" ]] || printf 'kit-program|%s\n' "$(PATH="${3:-${PATH}}" type -P -- "$1")"
  compat="$(compgen -G '/usr/local/cuda*/compat/libcuda.so*' || compgen -G '/usr/local/cuda*/compat/*/libcuda.so*')"
  printf 'kit-compat|%s\n' "${compat%%$'\n'*}"
  printf 'kit-cuda|%s|%s\n' "${CUDA_VERSION:-}" "${NVIDIA_REQUIRE_CUDA:-}"
  KIT_FABRIC="$4"
  fabric::find_lacks ''
  printf 'kit-fabric|%s\n' "${KIT_LACKS[*]}"
}

# contents::tell - reports what contents::find printed.
contents::tell() {
  local mark first second
  while IFS='|' read -r mark first second; do
    case "${mark}" in
      kit-python) probe::say python "${first}" "${second}" ;;
      kit-program) probe::say program "${first}" ;;
      kit-compat) [[ -z "${first}" ]] || probe::say image-compat "${first}" ;;
      kit-fabric) probe::say fabric-lacks "${first}" ;;
      kit-cuda) [[ -z "${first}" ]] || probe::say image-cuda "${first}" "$(contents::drivers "${second}")" ;;
    esac
  done
}

# contents::drivers NVIDIA_REQUIRE_CUDA - the older drivers that an image says it can do with on GPUs like this node's.
contents::drivers() {
  [[ -z "${GPU_BRAND}" ]] || grep -oE "brand=${GPU_BRAND},driver>=[0-9]+" <<<"$1" | sed 's/.*=//' | sort -un | tr '\n' ' '
}

# contents::list - the same of an image that would have to be unpacked first, by the names of its files: what is nowhere in it is
# missing for certain.
contents::list() {
  local -r program="${ASKED[program]:-}"
  local said variables
  if ! command -v unsquashfs >/dev/null; then
    probe::say unpack missing
  elif said="$(timeout 60 unsquashfs -l "${KIT_IMAGE}" 2>&1 | PROGRAM="${program##*/}" MODULE="${ASKED[module]:-}" contents::pick)"; then
    probe::say unpack ok
    variables="$(image_variables::print)"
    contents::tell <<<"${said}
kit-cuda|$(sed -n 's/^CUDA_VERSION="\{0,1\}\([0-9.]*\).*/\1/p' <<<"${variables}")|$(sed -n 's/^NVIDIA_REQUIRE_CUDA=//p' <<<"${variables}")"
  else
    said="$(grep -v '^kit-' <<<"${said}")"
    probe::say unpack "$(grep -i compress <<<"${said}" | head -n 1)" "$(kit::last_line <<<"${said}")"
  fi
}

# contents::pick - of unsquashfs's list, as contents::find would print it; and what unsquashfs says else.
contents::pick() {
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
