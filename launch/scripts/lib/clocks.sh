# clocks.sh - whether the nodes' clocks agree with the first node's, by the times that their answers bear.
# only: KIT_HEALTH

# Certificates and the times of files rely on it, and so does stall.sh. Before bash 5.0, times are whole seconds.
readonly KIT_CLOCK_S=2

# clocks::warn - on the first node, when all are ready.
clocks::warn() {
  local node ahead_s
  local -a off=()
  while read -r node ahead_s; do
    event::note clock_off node "${node}" ahead_s "${ahead_s}"
    off+=("${node} by ${ahead_s} s")
  done < <(clocks::compare)
  ((${#off[@]} == 0)) || kit::warn "clocks are ahead of this node's (or behind it: -): $(printf '%s\n' "${off[@]}" | kit::first_ten)" \
    "start the time service: chronyc tracking, timedatectl; if all are off alike, it is this node that is wrong"
}

# clocks::compare - prints each node whose clock is off by more than that, with the seconds by which it is ahead, at least: no answer
# is heard before it is given, and no task begins before srun starts it.
clocks::compare() (
  cd -- "${KIT_EVENTS%/*}" 2>/dev/null || return 0
  event::regular batch.jsonl ready.jsonl
  ((${#KIT_FILES[@]} == 2)) || return 0
  LC_ALL=C awk -v attempt="\"attempt\": ${KIT_ATTEMPT}," -v most="${KIT_CLOCK_S}" '
    function value(key) { return substr($0, index($0, "\"" key "\": ") + length(key) + 4) }
    FILENAME == "ready.jsonl" { end += length($0) + 1 }
    !index($0, attempt) || !/}$/ { next }
    /"event": "preparing"/ { told = value("t") + 0 }
    /"event": "heard"/ { until[++looks] = value("t") + 0; bytes[looks] = value("bytes") + 0 }
    /"event": "nodes_ready"/ { until[++looks] = value("t") + 0; bytes[looks] = 1e18 }
    /"event": "node_ready"/ && told && looks {
      while (look < looks && bytes[look] < end) look++
      node = substr(value("node"), 2); sub(/".*/, "", node)
      if (value("t") - until[look] > most) printf "%s %.1f\n", node, value("t") - until[look]
      else if (told - value("begun") > most) printf "%s %.1f\n", node, value("begun") - told
    }' batch.jsonl ready.jsonl
)
