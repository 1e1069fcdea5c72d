# setup.sh - the job's lines of bash that come before its program, in the container. They run in a shell of their own, in which
# they can break none of these scripts; the launcher then starts again in the place of that shell, so that the variables, limits
# and the umask that they set reach the program.
# only: setup.sh

# setup::run - they have what the program will have, its secrets included.
setup::run() {
  local -ra kit_next=("${BASH}" "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh" "NNODES=${NNODES}") # env.sh has the number that was asked for
  container::job_env
  [[ -z "${KIT_SECRETS:-}" ]] || secrets::take
  export KIT_IS_SET_UP=yes
  exec "${BASH}" "${KIT_RUN_DIR}/lib/own_lines.sh" setup "${kit_next[@]}"
}

# setup::go_on - behind the lines. What they made of the job's variables holds, and of PATH: as one of these, since it may lead to nothing
# but the program, and these scripts need their tools.
setup::go_on() {
  local -a kit_env=()
  local kit_name
  unset KIT_IS_SET_UP
  for kit_name in "${KIT_ENV[@]%%=*}"; do
    [[ -z "${!kit_name+set}" ]] || kit_env+=("${kit_name}=${!kit_name}")
  done
  [[ " ${kit_env[*]%%=*} " == *' PATH '* ]] || kit_env+=("PATH=${PATH}")
  KIT_ENV=("${kit_env[@]}") PATH="${KIT_PATH:-${PATH}}"
  cd -- "${KIT_WORKDIR}" || kit::die "the job's setup has removed the working directory ${KIT_WORKDIR}" "correct it in the job file" setup-failed
}
