# mounted_image.sh - images that Enroot mounts instead of unpacking them: squashfuse reads the file, and an overlay in memory takes what is
# written. For the runtimes enroot and pyxis.

source "${KIT_RUN_DIR}/lib/scratch.sh"

# mounted_image::missing - prints what this node lacks to mount an image, or nothing.
mounted_image::missing() {
  local overlay fuse
  fuse="$(mounted_image::missing_fuse)"
  overlay="$(enroot info 2>/dev/null | sed -n 's/^ *ENROOT_NATIVE_OVERLAYFS=//p')" || true
  if [[ -n "${fuse}" ]]; then
    printf '%s\n' "${fuse}"
  elif [[ "${overlay}" != @(|n|no|f|false) ]]; then
    mounted_image::has_overlay || printf "%s\n" "the kernel's overlay does not work in user namespaces, and enroot.conf does not say ENROOT_NATIVE_OVERLAYFS no"
  elif ! command -v fuse-overlayfs >/dev/null; then
    printf 'fuse-overlayfs is not installed\n'
  fi
}

# mounted_image::missing_fuse - the same of a file that needs no overlay.
mounted_image::missing_fuse() {
  if ! command -v squashfuse >/dev/null; then
    printf 'squashfuse is not installed\n'
  elif [[ ! -r /dev/fuse || ! -w /dev/fuse ]]; then
    printf '/dev/fuse is not there, or cannot be opened\n'
  fi
}

# mounted_image::has_overlay - whether a user may mount the kernel's overlay (5.11 and later).
mounted_image::has_overlay() {
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none "$1" && cd "$1" && mkdir lower upper work all &&
    mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work all' sh "${TMPDIR:-/tmp}" >/dev/null 2>&1
}

# mounted_image::try CHECK - mounts the image and runs CHECK in it, a line of bash: whether this node can start it so. Sets KIT_WHY_NOT if not.
# Enroot waits some tenths of a second for the mount, which a disk that has to read the file may miss; the next time it is in memory.
mounted_image::try() {
  local -r check="$1"
  local said
  local -i tries
  for ((tries = 1; tries <= 3; tries++)); do
    # CHECK has no use for GPUs. The mount's own processes hold descriptor 9, so this waits for their end, too: Slurm looks for processes
    # of a step that has ended, and again a second later if it finds one.
    if said="$(ENROOT_LOGIN_SHELL=no ENROOT_MOUNT_HOME=no NVIDIA_VISIBLE_DEVICES=void \
      timeout 120 enroot start --rw --rc "${KIT_RUN_DIR}/lib/no_entrypoint.sh" "${KIT_IMAGE}" bash -c "${check}" 2>&1 9>&1 </dev/null)"; then
      sleep 0.1 # the kernel ends them a moment after it has closed what they held
      return
    fi
    KIT_WHY_NOT="$(mounted_image::missing)"
    [[ -z "${KIT_WHY_NOT}" ]] || return 1
    KIT_WHY_NOT="$(printf '%s\n' "${said}" | kit::last_line)" || KIT_WHY_NOT='enroot does not say why'
    ((tries == 3)) || kit::say "cannot mount ${KIT_IMAGE}, and tries again: ${KIT_WHY_NOT}"
    sleep 0.2
  done
  return 1
}

# mounted_image::settle CHECK - whether this node mounts the image: as within the last hour, if nothing has changed since, or because a try
# shows that it can.
mounted_image::settle() {
  local -r check="$1"
  local facts known
  scratch::make
  facts="$(mounted_image::facts "${check}" | sha256sum)"
  known="$(find "${KIT_MINE}/mounted" -mmin -60 -exec cat {} + 2>/dev/null)" || true
  if [[ "${known}" == "${facts}" ]]; then
    mounted_image::read_ahead
  elif mounted_image::try "${check}"; then
    printf '%s\n' "${facts}" 2>/dev/null >"${KIT_MINE}/mounted" || true # on a full disk the next start tries, too
  else
    mounted_image::refuse || return
  fi
  kit::say "mounting ${KIT_IMAGE} instead of unpacking it"
  KIT_IN_PLACE=yes
}

# mounted_image::facts CHECK - prints all that decides whether a mount works again that worked here.
mounted_image::facts() {
  local -r check="$1"
  local -a tools variables=("${!ENROOT_@}")
  mapfile -t tools < <(command -v enroot squashfuse fuse-overlayfs)
  printf '%s\n' "${check}" "${KIT_IMAGE}" "${KIT_FINGERPRINT:-}" "$(mounted_image::missing_fuse)"
  ((${#variables[@]} == 0)) || declare -p "${variables[@]}"
  stat -Lc '%i %s %a' -- "${KIT_IMAGE}" # not its time: a node's copy has that of its last start
  stat -Lc '%n %i %s %a %Y' -- "${tools[@]}" /etc/enroot{,/*} 2>/dev/null || true
  cat -- /proc/sys/{kernel/random/boot_id,user/max_{user,mnt}_namespaces,kernel/{unprivileged_userns_clone,apparmor_restrict_unprivileged_userns}} 2>/dev/null || true
}

# mounted_image::read_ahead - has in memory what a mount reads first, the file's head and its tables: Enroot waits for it only some tenths of
# a second.
mounted_image::read_ahead() { { head -c 65536 && tail -c 4194304; } <"${KIT_IMAGE}" >/dev/null || true; }

# mounted_image::refuse - says why this node does not mount the image, which ends a job with `unpack: no`; fails.
mounted_image::refuse() {
  local cause=image-not-mounted fix="have it unpacked: \`unpack: yes\`, or auto, which also says if it is damaged; what is missing: kit doctor"
  [[ "${KIT_WHY_NOT}" != *'bash: not found'* ]] || cause=no-bash fix='add bash to the image (apk add bash, apt-get install bash)'
  [[ "${KIT_UNPACK}" != no ]] || kit::die "cannot mount ${KIT_IMAGE}: ${KIT_WHY_NOT}" "${fix}" "${cause}"
  kit::say "unpacking the image, since this node cannot mount it: ${KIT_WHY_NOT}"
  return 1
}
