# stages/sbcast.sh - the first node reads the image and Slurm hands it on from node to node, so the file server is read
# once however many nodes there are.

source "${KIT_RUN_DIR}/lib/copies.sh"

# In the user's own folder, where nobody else can put a link; stage::missing has made it on every node.
stage::received() { printf '%s/kit-%s/images/.%s.%s.received' "${KIT_SCRATCH:-/tmp}" "${UID}" "${KIT_FINGERPRINT}" "${SLURM_JOB_ID}"; }

stage::distribute() {
  [[ -r "${KIT_IMAGE}" ]] || kit::die "the image ${KIT_IMAGE} cannot be read" "check its path and mode: ls -l '${KIT_IMAGE}'" image-missing
  local -i missing=0 rc=0
  # One step to ask is cheap beside sending an image to nodes that have it.
  stage::ask || rc=$?
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "${rc}" # which has ended that step, too
  ((rc == 0)) || ending::explain_failure "${rc}"
  ((missing > 0)) || return 0
  kit::say "sending ${KIT_IMAGE} to ${NNODES} nodes: ${missing} of them do not have it"
  exec {digest}< <(sha256sum <"${KIT_IMAGE}") # meanwhile
  sbcast --force -- "${KIT_IMAGE}" "$(stage::received)" || rc=$?
  ((rc == 0)) || sleep 0.5 # Slurm, too, may have ended it, a moment before it tells this script
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal "${rc}"
  ((rc == 0)) ||
    kit::die "sbcast cannot send ${KIT_IMAGE} to the nodes" "see the line above; free space in ${KIT_SCRATCH:-/tmp} on every node; or \`stage: local\`"
  read -r KIT_IMAGE_SHA256 _ <&"${digest}"
  exec {digest}<&-
  export KIT_IMAGE_SHA256
}

# stage::ask - sets the caller's `missing` to the number of nodes that do not have the image. A node that does not answer in time, such as
# one whose file server hangs, ends the job; meanwhile Slurm, or a person, may want the nodes back.
stage::ask() {
  local pipe answers part line=''
  local -a answered=()
  local -i code=0 begin_s=SECONDS looked_s=SECONDS
  # srun is a job, since bash 4.4 waits only for the process substitution that it started last.
  exec {pipe}<> <(:)
  exec {answers}<"/proc/self/fd/${pipe}"
  "${KIT_SRUN_EACH[@]}" bash "${KIT_RUN_DIR}/run_script.sh" missing >&"${pipe}" {pipe}>&- {answers}<&- &
  local -ri srun_pid=$!
  exec {pipe}>&-
  while true; do
    code=0
    IFS= read -r -t 1 -u "${answers}" part || code=$?
    line+="${part}" # of a line that comes in two pieces, the first
    if ((code == 0)); then
      answered+=("${line% *}")
      [[ "${line}" != *' lacks' ]] || missing+=1 # other lines may be a greeting from the node's BASH_ENV
      line=''
    elif ((code <= 128)); then # srun has ended
      break
    elif preempt::asked; then
      exit 1
    fi
    ! ready::is_over || ready::give_up "${srun_pid}" "$(job::hosts | grep -vxFf <(printf '%s\n' "${answered[@]}") | kit::first_ten)"
  done
  exec {answers}<&-
  wait "${srun_pid}"
}

# stage::missing - on a node: its name, and whether it has the image.
stage::missing() {
  local -r source="${KIT_IMAGE}"
  stage::use
  stage::make_folder
  if stage::has_copy; then
    printf '%s has\n' "$(kit::node)"
  else
    [[ ! -r "${source}" ]] || scratch::need "${KIT_MINE}" "$(stat -Lc %s -- "${source}")" "a copy of ${source}"
    printf '%s lacks\n' "$(kit::node)"
  fi
}

stage::prepare() {
  stage::ensure stage::take
  rm -f -- "$(stage::received)" # where a copy was here already
}

stage::take() {
  local -r source="$1" file="${KIT_IMAGE}.unfinished"
  mv --no-target-directory -- "$(stage::received)" "${file}" ||
    kit::die "sbcast sent no image to this node" "submit again; if that does not help: \`stage: local\`"
  stage::accept "${file}" "${KIT_IMAGE_SHA256}" "${source}"
}
