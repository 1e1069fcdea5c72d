# kept_container.sh - the containers that kit unpacks on a node's disk. A container's name has the fingerprint of its image: a
# rebuilt image gets a new container while running jobs keep theirs, and no container is ever of another image than its name says.
# The runtimes reuse a container by its name alone; collect.sh (`kit images gc`) and probe.sh know one by KIT_CONTAINER_PATTERN.

source "${KIT_RUN_DIR}/lib/remove.sh"

# All such names, as a regular expression: a plug-in of Slurm's puts its own word before the name that it is given, which may end with the
# user's number.
KIT_CONTAINER_PATTERN='([a-z]+_)?kit-[0-9a-f]{16}(-[0-9]+)?'
# And of the folders with compile caches, beside which lie the same locks: cache.sh.
KIT_CACHE_PATTERN='kit-cache-[a-zA-Z0-9._-]+'

# kept_container::name - prints the name of the container of the image with KIT_FINGERPRINT. That it stands in the name is what lets a
# job reuse a container, replace a half-made one, and `kit images gc` remove one.
kept_container::name() { printf 'kit-%s' "${KIT_FINGERPRINT}"; }

# kept_container::is_whole FOLDER - succeeds if that container was unpacked to its end: it has its stamp then, which is written last. A
# crash of the node may leave files, and the stamp, without their content.
kept_container::is_whole() { [[ -s "$1/.kit-complete" ]]; }

# kept_container::stamp FOLDER WHAT - marks a container as unpacked to its end. Nothing reads or touches the stamp again: what removes old
# files from /tmp takes it with those of the container that nobody reads. What goes by when they were written takes old files of the image
# soon, and so the stamp has the oldest date of all. The image may have links of these names, which lead out of it.
kept_container::stamp() {
  rm -f -- "$1/.kit-used" "$1/.kit-complete" && : >"$1/.kit-used" && printf '%s\n' "$2" >"$1/.kit-complete" &&
    touch -m -d @0 -- "$1/.kit-complete"
}

# kept_container::use FOLDER - notes, for `kit images gc`, that a job starts with it now.
kept_container::use() { touch -c -h -- "$1/.kit-used"; }

# kept_container::make_once IS_WHOLE PLACE DOING COMMAND... - makes PLACE by COMMAND, under a lock, unless `IS_WHOLE PLACE` succeeds: it is
# there then, whole. The warm path takes no lock. DOING says what COMMAND does. A copy of an image is made so, too.
kept_container::make_once() {
  local -r is_whole="$1" place="$2" doing="$3"
  # When the nodes' time is over, the first one ends the job: a little before that this one can still say what it waited for.
  local -ri most_s="$((${KIT_READY_TIMEOUT_S:-900} * 19 / 20))"
  local lock file
  ! "${is_whole}" "${place}" || return 0
  file="$(kept_container::lock "${place}")"
  { exec {lock}>"${file}"; } || kit::die "cannot write ${file}" "see the line above; free there: df -h ${file%/*}"
  flock --timeout "${most_s}" "${lock}" ||
    kit::die "another job has been ${doing} for ${most_s} s" "look for it: fuser ${file}${KIT_READY_TIMEOUT_S:+; to wait longer: \`ready_timeout_s\`}"
  "${is_whole}" "${place}" || "${@:4}" # nobody made it while we waited
  exec {lock}>&-
}

# kept_container::clear FOLDER - under the lock, before one is made: removes what starts that were killed left of it. One without its stamp is
# not used again, but a job may be running in it, or have it mounted or on its path, which a cleaner of /tmp robbed: it is moved aside.
kept_container::clear() {
  local -r hidden="${1%/*}/.${1##*/}"
  kept_container::discard "${hidden}.unfinished"
  kept_container::discard "${hidden}.stale"
  [[ ! -e "$1" ]] || mv --no-target-directory -- "$1" "${hidden}.stale"
}

# kept_container::discard FOLDER - removes one of these two.
kept_container::discard() {
  [[ ! -e "$1" ]] || remove::tree "$1" "\.${KIT_CONTAINER_PATTERN}\.(unfinished|stale)" ||
    kit::die "cannot remove $1" "look what is in it, and remove it by hand"
}

# kept_container::lock PATH - prints the file that is locked by who makes the container, or the copy of an image, at PATH.
kept_container::lock() {
  local name="${1##*/}"
  name="${name#.}" name="${name%.unfinished}"
  printf '%s/.%s.lock' "${1%/*}" "${name%.stale}"
}
