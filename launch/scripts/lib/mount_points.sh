# mount_points.sh - the places of mounts that lie in other mounts, which a runtime does not make, or not as the user.

# mount_points::make NUMBER - makes the target of a mount that lies in another mount, as that of the compile caches does where the job
# mounts something as /tmp. Some runtimes would end the job without, and others make a folder or a file of root's there.
mount_points::make() {
  local -r kit_target="${KIT_MOUNTS[$1 + 1]}"
  local -i kit_outer
  local kit_above kit_place
  for ((kit_outer = $1 - 3; kit_outer >= 0; kit_outer -= 3)); do
    kit_above="${KIT_MOUNTS[kit_outer + 1]%/}"
    [[ "${kit_target}" == "${kit_above}"/* ]] || continue
    [[ "${KIT_MOUNTS[kit_outer + 2]}" == rw ]] || return 0
    kit_place="${KIT_MOUNTS[kit_outer]}${kit_target#"${kit_above}"}"
    if [[ -d "${KIT_MOUNTS[$1]}" || "${KIT_MOUNTS[$1 + 2]}" == data ]]; then
      mkdir -p -- "${kit_place}" 2>/dev/null || true
    elif [[ ! -e "${kit_place}" && ! -L "${kit_place}" ]]; then
      { mkdir -p -- "${kit_place%/*}" && : >"${kit_place}"; } 2>/dev/null || true
    fi
    return 0
  done
}
