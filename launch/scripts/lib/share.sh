# share.sh - with `share: group`: members of the run directory's group read the logs and the events, and leave requests in a folder,
# in which the batch script looks, since Slurm lets no other user signal it. See docs/preemption.md.
# only: KIT_SHARE

# share::begin - on the first node: from now on what this script and its sruns write can be read by the group, and written by
# nobody else. KIT_UMASK is the user's own umask, which holds again where the user's commands run.
share::begin() {
  [[ -n "${KIT_IS_AGAIN:-}" && -n "${KIT_UMASK:-}" ]] || KIT_UMASK="$(umask)"
  export KIT_UMASK
  umask 027
  # Slurm has created the log, and the job's host_setup may have created the events, with another umask.
  chmod -f 640 -- "${KIT_RUN_DIR}/log/slurm-${KIT_ID}.out" "${KIT_EVENTS}" || true
  [[ "${KIT_ON_PREEMPT}" != none ]] || return 0
  # Nobody can remove another's request, or see who asks.
  [[ -d "${KIT_LOG_DIR}/requests" ]] || mkdir -m 3730 -- "${KIT_LOG_DIR}/requests" || return 0
  share::watch </dev/null >/dev/null 2>&1 &
  KIT_WATCHER=$!
}

# share::create_events - makes the file of the events, where a full disk lets it, with the umask that holds now.
share::create_events() { [[ -e "${KIT_EVENTS}" ]] || { : >>"${KIT_EVENTS}"; } 2>/dev/null || true; }

# share::restore_umask - on a node: once the group can read what it notes, the user's umask holds again, for the ranks.
share::restore_umask() {
  share::create_events
  umask "${KIT_UMASK}"
  unset KIT_UMASK
}

# share::end - before this script ends, or begins anew. What the program itself has put there has the modes of its own umask.
share::end() {
  [[ -z "${KIT_WATCHER:-}" ]] || kill -TERM "${KIT_WATCHER}" 2>/dev/null || true
  KIT_WATCHER=''
  find -H "${KIT_LOG_DIR}" -maxdepth 1 \( -name progress -o -name 'flight.*' \) -exec chmod -f g=r,o= -- {} + 2>/dev/null || true # they may be too many for one command
}

# share::leave - the same, before this script becomes a command of the user's.
share::leave() {
  share::end
  umask "${KIT_UMASK}"
  unset KIT_UMASK
}

# share::watch - wakes the batch script, as kit does for its owner, when a request is there that was not there before.
share::watch() {
  trap 'exit 0' TERM
  trap '' INT HUP USR1 USR2 URG
  set +e
  local -a found
  local known='' never
  exec {never}<> <(:) # nothing ever comes
  while kill -0 "$$"; do
    found=("${KIT_LOG_DIR}/requests"/*)
    [[ ! -e "${found[0]}" || "${found[*]}" == "${known}" ]] || kill -URG "$$"
    known="${found[*]}"
    read -r -t 5 -u "${never}" _
  done
}

# share::read_requests - sets the caller's `request` to what members ask for, and KIT_ASKED_BY to who does. A request is an empty file:
# its name says what, and its owner who. So nothing is opened that another user has made, and no link is followed.
share::read_requests() {
  local -r place="${KIT_LOG_DIR}/requests"
  local file group who size links word
  ending::refresh "${place}"
  group="$(stat -c %g -- "${place}")" || return 0
  for file in "${place}"/stop.* "${place}"/checkpoint.*; do
    [[ -f "${file}" && ! -L "${file}" ]] || continue
    read -r links size who < <(stat -c '%h %s %U' -- "${file}") || true
    rm -f -- "${file}"
    word="${file##*/}" word="${word%%.*}"
    # A file that was linked there may be anybody's. The folder is for members alone, but may have an ACL.
    if [[ "${links} ${size}" != '1 0' ]] || ! share::is_member "${who}" "${group}"; then
      kit::say "a request to ${word} is not followed: it is not an empty file of a member of the run's group (${who:-gone}, as this node knows its users)"
    elif [[ "${request}" != stop && "${KIT_REQUEST}" != stop ]]; then
      request="${word}" KIT_ASKED_BY="${who}"
    fi
  done
}

# share::is_member USER GROUP - whether this node knows the user as a member of the group of this number.
share::is_member() { [[ " $(id -G -- "$1" 2>/dev/null) " == *" $2 "* ]]; }
