# stages/local.sh - every node copies the image to its own disk.

source "${KIT_RUN_DIR}/lib/copies.sh"

stage::distribute() { :; }
stage::prepare() {
  [[ -r "${KIT_IMAGE}" ]] ||
    kit::die "the image ${KIT_IMAGE} does not exist here or cannot be read" "put it on a file system that every node sees" image-missing
  stage::ensure stage::copy
}

stage::copy() {
  local -r source="$1" file="${KIT_IMAGE}.unfinished"
  local digest
  rm -f -- "${file}" # left by a start that was killed
  scratch::need "${KIT_IMAGE%/*}" "$(stat -Lc %s -- "${source}")" "a copy of ${source}"
  kit::say "copying ${source} to ${KIT_IMAGE}"
  if ! digest="$(set -o pipefail && tee -- "${file}" <"${source}" | sha256sum)"; then
    rm -f -- "${file}"
    kit::die "cannot copy ${source} to ${KIT_IMAGE%/*}" "see the line above; free there: df -h ${KIT_IMAGE%/*}"
  fi
  stage::accept "${file}" "${digest}" "${source}"
}
