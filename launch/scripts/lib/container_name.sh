# shellcheck disable=SC2034  # other files of lib/ read what this one sets
# container_name.sh - the containers that kit unpacks on a node's disk. A container's name has the fingerprint of its image: a
# rebuilt image gets a new container while running jobs keep theirs, and no container is ever of another image than its name says.
# The runtimes reuse a container by its name alone; collect.sh (`kit images gc`) and probe.sh know one by KIT_CONTAINER_PATTERN.

# All such names, as a regular expression: a plug-in of Slurm's puts its own word before the name that it is given.
KIT_CONTAINER_PATTERN='([a-z]+_)?kit-[0-9a-f]{16}'
# And of the folders with compile caches, beside which lie the same locks: cache.sh.
KIT_CACHE_PATTERN='kit-cache-[a-zA-Z0-9._-]+'

# container_name::of_image - prints the name of the container of the image with KIT_FINGERPRINT. That it stands in the name is what lets a
# job reuse a container, replace a half-made one, and `kit images gc` remove one.
container_name::of_image() { printf 'kit-%s' "${KIT_FINGERPRINT}"; }

# container_name::is_whole FOLDER - succeeds if that container was unpacked to its end: it has its stamp then, which is written last. A
# crash of the node may leave files, and the stamp, without their content.
container_name::is_whole() { [[ -s "$1/.kit-complete" ]]; }

# container_name::stamp FOLDER WHAT - marks a container as unpacked to its end. Nothing reads or touches the stamp again: what removes old
# files from /tmp takes it with those of the container that nobody reads.
container_name::stamp() { : >"$1/.kit-used" && printf '%s\n' "$2" >"$1/.kit-complete"; }

# container_name::use FOLDER - notes, for `kit images gc`, that a job starts with it now.
container_name::use() { touch -c -- "$1/.kit-used"; }

# container_name::make_once FOLDER DOING COMMAND... - notes the use of FOLDER, which COMMAND makes first, under a lock, where it is not
# there, whole. The warm path takes no lock. DOING says what COMMAND does.
container_name::make_once() {
  local -r folder="$1" doing="$2"
  local lock file
  if ! container_name::is_whole "${folder}"; then
    file="$(container_name::lock "${folder}")"
    exec {lock}>"${file}"
    flock --timeout 900 "${lock}" ||
      kit::die "another job has been ${doing} for 15 minutes" "look for it: fuser ${file}"
    container_name::is_whole "${folder}" || "${@:3}" # nobody made it while we waited
    exec {lock}>&-
  fi
  container_name::use "${folder}"
}

# container_name::used_s PATH - prints when a job last started with a container, or with a copy of an image.
container_name::used_s() { stat -c %Y -- "$1/.kit-used" 2>/dev/null || stat -c %Y -- "$1/.kit-complete" 2>/dev/null || stat -c %Y -- "$1"; }

# container_name::lock PATH - prints the file that is locked by who makes the container, or the copy of an image, at PATH.
container_name::lock() {
  local name="${1##*/}"
  name="${name#.}" name="${name%.unfinished}"
  printf '%s/.%s.lock' "${1%/*}" "${name%.stale}"
}
