# shellcheck disable=SC2034  # lib/job.sh reads what this one sets
# shell.sh - with `kit shell`, which alone brings this file: when all nodes are ready, a shell or Jupyter is started on one of them, instead
# of the ranks.

source "${KIT_RUN_DIR}/lib/exec.sh"

# shell::main VERB NODE... - salloc starts it.
shell::main() {
  exec {KIT_TERMINAL}<&0 </dev/null # what is typed meanwhile is for the shell
  trap 'exit 130' INT
  job::main "$@"
}

# shell::start VERB NODE... - on the machine where salloc runs this, when all nodes are ready: becomes a shell, or Jupyter,
# on one of the job's nodes, by its name or its number; more words are for jupyter.sh.
shell::start() {
  local -r verb="$1"
  local -a hosts command=(bash) facts=("${KIT_FACTS[@]}")
  local host address
  mapfile -t hosts < <(job::hosts)
  KIT_HOSTS="$(IFS=, && printf '%s' "${hosts[*]}")"
  host="$(shell::host "$2" "${hosts[@]}")" || exit 1 # -e does not reach into $(...)
  if [[ "${verb}" == jupyter ]]; then
    address="$(net::address "${host}")" || exit 1
    command=(bash "${KIT_RUN_DIR}/jupyter.sh" "${address}" "${@:3}")
  else
    shell::explain "${host}" "${#hosts[@]}"
    # The start-up files of Debian and Ubuntu set PS1 anew, with the second before it.
    facts+=("PS1=(kit ${KIT_ID} ${host}) \\w \\$ " "debian_chroot=kit ${KIT_ID} ${host}")
  fi
  event::note ranks_started
  trap - EXIT # nothing of this script is left to note the end
  [[ -z "${KIT_SHARE:-}" ]] || share::leave
  exec <&"${KIT_TERMINAL}" {KIT_TERMINAL}<&-
  exec::attach "${host}" "${facts[@]}" "KIT_HOSTS=${KIT_HOSTS}" -- "${command[@]}"
}

# shell::host WORD HOST... - prints the host of that name or number.
shell::host() {
  local -i number=0
  local host
  for host in "${@:2}"; do
    [[ "$1" != "${host}" && "$1" != "${number}" ]] || { printf '%s\n' "${host}" && return; }
    number+=1
  done
  kit::die "the job has no node $1" "name one of: ${*:2}; or its number, from 0"
}

# shell::explain HOST COUNT - how to start by hand what the job file says, unless it says nothing: then the command is `true`.
shell::explain() {
  kit::say "a shell on ${1}; the job ends with it"
  [[ "${KIT_COMMAND[*]}" != true && "${KIT_TASKS_PER_NODE}" == 1 ]] || return 0
  if (($2 == 1)); then
    kit::say "to start the job's command: bash \"\${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh\""
  else
    kit::say "to start the job's command on all nodes, in another terminal: kit exec ${KIT_ID} --node all -- bash $(printf '%q' "${KIT_RUN_DIR}/${KIT_LAUNCHER}.sh")"
  fi
}
