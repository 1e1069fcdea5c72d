# blame.sh - finds which rank is at fault. The first node runs it, and `kit why` reports its answer; if a run left no answer,
# `kit why` runs this file itself. blame.awk judges, where there is awk.

# blame::first - prints RANK CODE NODE LOCAL_RANK HOW AFTER, or nothing where no rank can be blamed. HOW is "failed"; "left": it
# ended with 0, and others missed it; or "missing": the others waited for it. AFTER is how many lines of its log follow the
# exception that ended it. CODE is the job's. It reads the nodes' events, and the ends of all ranks' logs: 64 MB in all, or 16 KB of each
# where they are more than 4,096. A file server that does not answer must not keep the job's end waiting: hence the time limits.
blame::first() (
  cd -- "${KIT_ATTEMPT_DIR}" || return 0
  up='' # with the folders' whole names the files would be too long for a command
  [[ "${KIT_ATTEMPT_DIR}" == "${KIT_LOG_DIR}" ]] || up=../
  event::regular "${up}"events/*.jsonl
  events=("${KIT_FILES[@]}")
  event::regular rank*.out
  logs=("${KIT_FILES[@]}")
  ((${#events[@]} && ${#logs[@]})) || return 0
  most=$((67108864 / ${#logs[@]}))
  most=$((most > 1048576 ? 1048576 : most < 16384 ? 16384 : most))
  {
    printf '%s\0' "${events[@]}" "${logs[@]}" | xargs -0 stat -c '%.9Y %n' -- || true
    printf '@logs\n'
    printf '%s\0' "${logs[@]}" | xargs -0 timeout 120 tail -v -c "${most}" --
  } 2>/dev/null | LC_ALL=C timeout 120 awk -v attempt="${KIT_ATTEMPT}" -f "${KIT_RUN_DIR}/lib/blame.awk" part=events "${events[@]}" part=files - 2>/dev/null || true
)
