# program.sh - which Python starts the job's program. `kit doctor` looks by the same functions.

# program::functions - prints those that find a Python, for a shell inside the image.
program::functions() { declare -f kit::split program::names_python program::choose_path program::find_python program::has_module program::has_file; }

# program::names_python - whether the command names its Python by a path.
program::names_python() { [[ "${KIT_COMMAND[0]:-}" == */python?(3*([.0-9])) ]]; }

# program::choose_path - sets the caller's kit_path to the folders of Pythons: that of the Python which the command names by its path, those
# of the job's own PATH, and those of this shell's.
program::choose_path() {
  local kit_pair
  kit_path="${PATH}"
  for kit_pair in "${KIT_ENV[@]}"; do [[ "${kit_pair}" != PATH=?* ]] || kit_path="${kit_pair#*=}"; done
  [[ ":${kit_path}:" == *":${PATH}:"* ]] || kit_path+=":${PATH}"
  ! program::names_python || kit_path="${KIT_COMMAND[0]%/*}:${kit_path}"
}

# program::find_python MODULE... - sets KIT_PYTHON to the first Python that has one of them, and KIT_HAS to that
# one. Else to the first Python: whether the program can do without is for its launcher to say. A command that names its Python by a
# path runs in that one, whatever others have.
program::find_python() {
  local -a kit_folders kit_pythons
  local kit_python kit_path
  KIT_PYTHON='' KIT_HAS=''
  program::choose_path
  kit::split kit_folders : "${kit_path}"
  kit_pythons=("${kit_folders[@]/%//python3}" "${kit_folders[@]/%//python}")
  ! program::names_python || kit_pythons=("${KIT_COMMAND[0]}")
  for kit_python in "${kit_pythons[@]}"; do
    [[ -x "${kit_python}" && ! -d "${kit_python}" ]] || continue
    KIT_PYTHON="${KIT_PYTHON:-${kit_python}}"
    for KIT_HAS in "$@"; do
      if program::has_module "${kit_python}" "${KIT_HAS}"; then
        KIT_PYTHON="${kit_python}"
        return
      fi
    done
  done
  KIT_HAS=''
}

# program::lack MODULE - says that no Python has it. Under `kit run` the first folder of PATH is that of the stand-ins for Slurm.
program::lack() {
  local kit_path kit_fix="name an image that has it: \`image: FILE\`; one off PATH by its path: \`command: FOLDER/bin/python train.py\`" kit_where="on PATH in the image"
  local kit_folder kit_lack="has no $1"
  local -a kit_folders
  program::choose_path
  kit::split kit_folders : "${kit_path}"
  for kit_folder in "${kit_folders[@]}"; do # such as a virtual environment of uv, whose Python is in /root
    if [[ (-L "${kit_folder}/python3" && ! -e "${kit_folder}/python3") || ("${kit_folder}" == /root/* && ! -x /root) ]]; then
      kit_fix="look at ${kit_folder}/python3: what it leads to is not there, or this user may not enter its folder (in the recipe: RUN chmod a+rx /root); or ${kit_fix}"
    fi
  done
  [[ -z "${KIT_LOOPBACK:-}" ]] || kit_path="${kit_path/"${PATH}"/"${PATH#*/local:}"}"
  if [[ -z "${KIT_IMAGE}" ]]; then
    kit_where='on PATH' kit_fix="activate the environment that has it (or pip install $1), and start again; or ${kit_fix}; a program without $1: \`launcher: srun\`"
  fi
  [[ -e "${KIT_COMMAND[0]:-}" ]] || kit_lack='is not there'
  ! program::names_python || kit::die "${KIT_COMMAND[0]}, which the command names, ${kit_lack}" \
    "name only the program, for the first Python on PATH that has it: \`command: train.py\`; or ${kit_fix}" no-torch
  kit::die "no python3 or python ${kit_where} has $1 (looked in ${kit_path})" "${kit_fix}" no-torch
}

# program::has_module PYTHON MODULE - a look at the files beside it tells for most; starting a Python takes longer, above all from
# a cold image. It gets the job's variables, such as PYTHONPATH; not by `env`: a process list would show them, and PATH may lack it.
program::has_module() {
  program::has_file "$@" || (
    for kit_pair in "${KIT_ENV[@]}"; do export "${kit_pair?}"; done
    exec "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)' "$2"
  ) 2>/dev/null
}

# program::has_file PYTHON FILE - among the packages beside it; not of another Python, which an upgrade may have left there.
program::has_file() {
  local kit_name kit_folder
  kit_name="$(readlink -f -- "$1")" || true
  kit_name="${kit_name##*/}"
  [[ "${kit_name}" == python3.+([0-9])?(t) ]] || kit_name='python3*'
  for kit_folder in "lib/${kit_name}" "local/lib/${kit_name}" lib/python3; do # the last is Debian's, for all
    ! compgen -G "${1%/*}/../${kit_folder}/*-packages/$2" >/dev/null || return 0
  done
  return 1
}

# program::choose MODULE... - sets KIT_PROGRAM: a Python program as its own line in a shell would start it, with the
# first Python that has one of the modules, unless one was found before; anything else as it is, and no Python is looked for. The job's PATH
# need not lead to a bash for the job's own script.
program::choose() {
  local kit_path
  program::choose_path
  KIT_PROGRAM=("${KIT_COMMAND[@]}")
  [[ "${KIT_PROGRAM[0]}" != bash || ! -e "${KIT_RUN_DIR}/script.sh" ]] || KIT_PROGRAM[0]="$(PATH="${kit_path}" type -P bash || printf '%s' "${BASH}")"
  [[ "${KIT_PROGRAM[0]}" == @(*.py|python|python3) ]] || return 0
  [[ -n "${KIT_PYTHON:-}" ]] || program::find_python "$@"
  [[ -n "${KIT_PYTHON}" ]] ||
    kit::die "there is no Python here (looked for python3 and python in ${kit_path})" "choose an image that has it" no-torch
  case "${KIT_PROGRAM[0]}" in
    *.py) KIT_PROGRAM=("${KIT_PYTHON}" -u "${KIT_PROGRAM[@]}") ;;
    *) KIT_PROGRAM[0]="${KIT_PYTHON}" ;;
  esac
}
