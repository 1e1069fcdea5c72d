# stages/sbcast.sh - the first node reads the image and Slurm hands it on from node to node, so the file server is read
# once however many nodes there are.

source "${KIT_RUN_DIR}/lib/copies.sh"

# In the user's own folder, where nobody else can put a link; stage::missing has made it on every node.
stage::received() { printf '%s/kit-%s/images/.%s.%s.received' "${KIT_SCRATCH:-/tmp}" "${UID}" "${KIT_FINGERPRINT}" "${SLURM_JOB_ID}"; }

stage::distribute() {
  [[ -r "${KIT_IMAGE}" ]] || kit::die "the image ${KIT_IMAGE} cannot be read" "check its path and mode: ls -l '${KIT_IMAGE}'" image-missing
  local number=''
  local -i rc=0
  # One step to ask is cheap beside sending an image to nodes that have it.
  ready::ask missing image_missing image_found
  ((${number:-NNODES} > 0)) || return 0
  kit::say "sending ${KIT_IMAGE} to ${NNODES} nodes: ${number:-some} of them do not have it"
  exec {digest}< <(sha256sum <"${KIT_IMAGE}") # meanwhile
  { sbcast --force -- "${KIT_IMAGE}" "$(stage::received)" && read -r KIT_IMAGE_SHA256 _ <&"${digest}"; } || rc=$?
  ((rc == 0)) || sleep 0.5 # Slurm, too, may have ended them, a moment before it tells this script
  [[ -z "${KIT_SIGNAL}" ]] || ending::after_signal 143
  ((rc == 0)) ||
    kit::die "cannot read ${KIT_IMAGE} and send it to the nodes by sbcast" "see the line above; free space in ${KIT_SCRATCH:-/tmp} on every node; or \`stage: local\`"
  exec {digest}<&-
  export KIT_IMAGE_SHA256
}

# stage::missing - on a node: answers whether it has the image.
stage::missing() {
  local -r source="${KIT_IMAGE}"
  stage::use
  stage::make_folder
  if stage::has_copy; then
    event::line image_found
  else
    [[ ! -r "${source}" ]] || scratch::need "${KIT_MINE}" "$(stat -Lc %s -- "${source}")" "a copy of ${source}"
    event::line image_missing
  fi
  printf '%s\n' "${KIT_LINE}"
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
