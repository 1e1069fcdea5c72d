# scratch.sh - this user's own folder on a node's disk.

# scratch::make - sets KIT_MINE to that folder.
scratch::make() {
  KIT_MINE="${KIT_SCRATCH:-/tmp}/kit-${UID}"
  (umask 077 && mkdir -p -- "${KIT_MINE}") ||
    kit::die "cannot write below ${KIT_SCRATCH:-/tmp}" "name a writable node-local folder: \`scratch: /local\` in the cluster's profile"
  # Others may write to /tmp: a folder that somebody else prepared there is not ours to trust.
  [[ -O "${KIT_MINE}" && ! -L "${KIT_MINE}" ]] ||
    kit::die "${KIT_MINE} belongs to somebody else" "have it removed, or name another scratch folder in the cluster's profile"
}

# scratch::make_place - makes the folder that is to hold it, if need be: a profile may name one of each user's, with $USER.
scratch::make_place() { (umask 077 && mkdir -p -- "${KIT_SCRATCH:-/tmp}"); }

# scratch::is_noexec FOLDER - whether no code can be loaded from there: it is mounted noexec, as hardened nodes do with /tmp.
scratch::is_noexec() {
  local file
  local -i is_noexec=0
  file="$(mktemp -- "$1/.executable.XXXXXX" 2>/dev/null)" || return 1
  { chmod u+x -- "${file}" && [[ ! -x "${file}" ]]; } 2>/dev/null || is_noexec=1 # -x asks the kernel, which knows
  rm -f -- "${file}"
  return "${is_noexec}"
}

# scratch::need FOLDER BYTES WHAT - ends the job if WHAT does not fit there.
scratch::need() {
  local -r folder="$1" what="$3"
  local -ri needed="$2"
  local -i free
  free="$(df --output=avail --block-size=1 -- "${folder}" | tail -n 1)"
  ((free >= needed)) ||
    kit::die "${folder} has $((free / 1048576)) MiB free; ${what} needs $((needed / 1048576))" \
      "free some, or name another scratch folder in the cluster's profile" disk-full
}
