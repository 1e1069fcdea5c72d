# blame.awk - which rank is at fault, by what all of them noted and said.
#
# Each rank that ended badly gets a grade. The smallest is at fault, of equal ones the earliest:
#   OWN       it failed by itself
#   DOUBTFUL  so it did, but it had spoken of others before, missed them right after, or was ended meanwhile
#   BROKEN    a connection of its own broke
#   GONE      it only missed other ranks
# Of several exceptions in a chain the first one counts: what clean-up makes of it may be anything. OTHERS_GONE is what a rank
# says when others are gone or late; launch/kit/diagnose/why/ends.py has the same words, as tests/unit/test_blame.py compares.
function grade_of(type, text, file) {
  if (text ~ OTHERS_GONE) return type ~ /^(RuntimeError|torch\.|c10)|Dist[A-Za-z]*Error$|Rendezvous|^nccl/ ? GONE : BROKEN
  if (type ~ /(Connection|BrokenPipe|Timeout)[A-Za-z]*Error$/ || text == "EOFError") return BROKEN
  return type ~ /^RuntimeError$|^torch\./ && file ~ /torch\/distributed\/(distributed_c10d|rendezvous)\.py"/ ? BROKEN : OWN
}
function value(key,  rest) { # of one of kit's own lines
  rest = substr($0, index($0, "\"" key "\": ") + length(key) + 4)
  sub(/^"/, "", rest); sub(/[",}].*/, "", rest)
  return rest
}
# When a rank ended, by the file server's clock, which is one: its node's own differs from it by as much as at the last event.
# Where a program wrote the last line, or the file was copied since, its own has to do.
function ended_at(r,  ahead) {
  ahead = time[file_of[r]] - last[file_of[r]]
  return ended_time[r] + (ahead > -3600 && ahead < 3600 ? ahead : 0)
}
function settle() {
  if (root == "" || settled) return
  type = root; sub(/:.*/, "", type); sub(/[ \t]*$/, "", type)
  grade = grade_of(type, root, root_file)
  settled = 1
}
# Of the lines behind the last exception, `after` counts all, and `noise` those without weight; of those behind the last traceback,
# `between` counts those with weight. said_last: nothing of weight follows the exception.
function keep() {
  if (rank == "") return
  settle()
  if (fell && grade >= BROKEN) grade = DOUBTFUL
  has[rank] = root != ""; grades[rank] = grade; is_logged[rank] = logged; is_late[rank] = late; spoken[rank] = spoke
  said_last[rank] = noise == after; after_lines[rank] = after; words[rank] = root; last_words[rank] = tail3 tail2 tail1
}
function reset() {
  root = root_file = held = held_file = file = before = tail1 = tail2 = tail3 = ""
  inside = chained = more = grade = logged = settled = late = over = spoke = fell = after = between = noise = boxed = of_workers = count = at = 0
}
function better(g, t, r) { return best == "" || g < best_grade || (g == best_grade && (t < best_time || (t == best_time && r + 0 < best + 0))) }
# Of ranks that called different collectives, each of which names one that differs: the one that most of them name.
function odd_one(  r, n, count, most, odd) {
  for (r in noted) if (match(words[r], /but Rank [0-9]+ is running collective/)) {
    n = substr(words[r], RSTART, RLENGTH); gsub(/[^0-9]/, "", n); count[n]++
  }
  most = 1
  for (n in count) if (count[n] > most) { most = count[n]; odd = n } else if (count[n] == most) odd = ""
  return odd in noted && words[odd] ~ MISMATCH ? odd : ""
}
# Whether an exception ended rank r, with code c at time t: Python ends with 1 then, soon after a program has logged it.
function is_exception(r, c, t) { return has[r] && c == 1 && !(is_logged[r] && t - time["rank" r ".out"] > 0.9) }
# The grade of a rank that noted its end. The signals of FROM_OTHERS come when something else has ended; of the others, an abort may
# have been a watchdog's of compiled code, also of a rank that was about to end by an exception of its own, from before that spoke.
function grade_at_end(r, c, t) {
  if (c == 134 && has[r] && !is_logged[r] && !is_late[r] && said_last[r] && grades[r] == OWN) return spoken[r] ? DOUBTFUL : OWN
  if (c == 134 && (last_words[r] ~ OTHERS_GONE || words[r] ~ OTHERS_GONE)) return GONE
  if (c == 134 && spoken[r]) return DOUBTFUL
  if (c > 128 && c !~ FROM_OTHERS) return OWN
  if (is_exception(r, c, t)) return grades[r] == OWN && spoken[r] ? DOUBTFUL : grades[r]
  if (has[r] && said_last[r] && (grades[r] == GONE || grades[r] == DOUBTFUL)) return grades[r]
  if (spoken[r] || (has[r] && words[r] ~ OTHERS_GONE)) return BROKEN
  return c ~ FROM_OTHERS ? DOUBTFUL : OWN
}
function choose(g, t, r, c) { if (better(g, t, r)) { best = r; best_grade = g; best_time = t; best_code = c } }
BEGIN {
  rank = ""
  OWN = 0; DOUBTFUL = 1; BROKEN = 2; GONE = 3
  FROM_OTHERS = "^(129|130|141|143)$" # SIGHUP, SIGINT, SIGPIPE and SIGTERM
  OTHERS_GONE = "Connection closed by|[Cc]onnection (was |likely )*(closed|reset)|Broken pipe" \
    "|Connection refused|connectFullMesh failed|ncclRemoteError" \
    "|Failed to recv, got 0 bytes|failed to recv|remote process exited" \
    "|Watchdog caught collective|NCCL operations have failed|Heartbeat monitor timed out|[Ww]atchdog (got stuck|hang)" \
    "|collective timeout|failed to pass monitoredBarrier" \
    "|Timed out (waiting [0-9]+ms|after [0-9]+ seconds waiting|initializing process group)|wait timeout after" \
    "|Application timeout caused pair closure|client socket has (timed out|failed)" \
    "|Socket Timeout|JAX distributed service detected"
  LAUNCHER = "(Command '(.')?|/|=[^ ]* |-m', '|-m )(torchrun|torch[.]distributed[.](run|launch)" \
    "|accelerate([.]commands[.]launch)?|deepspeed)(', '| )"
  # of Python, with PYTHONFAULTHANDLER=1; logs.py has the same words
  DUMP = "^(Fatal Python error: Aborted|(Current t|T)hread 0x|  File .*, line [0-9]+ in " \
    "|  <no Python frame>|Extension modules: )"
  # says nothing of whether the program went on; ends.py has the same words
  NOISE = "[Ww]arning|^Terminated|^Killed|^Exception (ignored|raised from )|^[-+| 0-9]*$" \
    "|^terminate called |^  what\\(\\): |^frame #|^\\[([WE][0-9 ]|WARN|ERROR)|^  warnings\\.warn" \
    "|: line [0-9]+: +[0-9]+ Aborted "
  MISMATCH = "Detected mismatch between collectives on ranks"
}
# The nodes' events. A rank that begins again, after torchrun's restart, has not ended.
part == "events" && !/^[{]"t": [0-9.]+, "attempt": / { last[FILENAME] = 0; next } # a program's, or cut off by a full disk
part == "events" {
  if (value("t") + 0 > last[FILENAME]) last[FILENAME] = value("t") + 0
  if (!index($0, "\"attempt\": " attempt ",")) next
  r = value("rank")
  if (/"event": "rank_started"/) { delete noted[r]; delete ended[r] }
  else if (/"event": "rank_ended"/) {
    code[r] = ended[r] = value("code") + 0; ended_time[r] = value("t") + 0; local_rank[r] = value("local_rank")
    if (code[r] != 0 && value("stopped") == "false") noted[r] = 1
  } else next
  node[r] = value("node"); file_of[r] = FILENAME
  next
}
# When each file was last written, by the file server's clock.
part == "files" { if ($1 == "@logs") part = "logs"; else time[$2] = $1; next }
/^==> rank[0-9]+\.out <==$/ {
  keep(); rank = $2; gsub(/[^0-9]/, "", rank); seen[rank] = 1; reset()
  next
}
{
  count++
  sub(/\r+$/, ""); sub(/.*\r/, ""); sub(/^(\[(rank|default)[0-9]+\]: ?)+/, "")
  # An exception group is drawn in a box.
  if (/Exception Group Traceback/) boxed = 1
  else if (boxed && /^ *[|+]/) { sub(/^ *[|+]-?[+]?/, ""); sub(/^ /, "") }
  else boxed = 0
}
/\[[0-9]+\] NCCL INFO / { after++; noise++; next } # such as a plug-in that it does without
$0 ~ DUMP { after++; noise++; more = 0; next }
/^  traceback : Traceback / { after++; noise++; next } # in torchrun's report, of what a process has said itself
/Traceback \(most recent call last\)/ {
  after++
  if (before ~ /^Exception ignored/) { noise++; ignoring = 1; before = $0; next }
  ignoring = 0
  settle()
  if (root != "" && !logged && (held == "" || grade == OWN)) { held = root; held_file = root_file; held_at = at }
  other_end = before ~ /\(exitcode: / && before !~ /\(exitcode: 1\)/ # an exception ends Python with 1
  if (!chained) {
    # One that is printed with nothing after it, and then what clean-up made of it, in a traceback of its own.
    fell = root != "" && !between && (fell || (grade == OWN && !spoke && !logged))
    if (root ~ OTHERS_GONE && !of_workers) spoke = 1
    of_workers = before ~ /\(_pin_memory_loop\)/ # a DataLoader's thread, whose others are no ranks
    root = ""; settled = 0; logged = before ~ /ERROR|CRITICAL|Exception in thread/
  }
  inside = 1; file = ""; before = $0
  next
}
{
  after++
  is_noise = ignoring || $0 ~ NOISE
  if (is_noise || more > 0) noise++
  if (!is_noise) between++
  if (ignoring && $0 !~ /^ /) ignoring = 0
}
inside && /^[ \t|+>]*File "/ { file = $0; next }
# Rich draws a box around a traceback, in characters beyond ASCII. \033 begins a colour.
inside && (/^[^!-~\033]/ || $0 == "") { next }
# torchrun, in a program that starts it, says that a rank has failed: what that said itself stands above.
inside && held != "" && !other_end && (/ChildFailedError: *$/ || /^subprocess\.CalledProcessError: / && $0 ~ LAUNCHER) {
  root = held; root_file = held_file; after = noise = count - held_at
  inside = settled = logged = fell = growing = chained = more = 0; before = $0
  next
}
inside {
  inside = 0; after = noise = between = chained = 0; more = 8; at = count
  if (root == "") { root = $0; root_file = file; late = over; settled = 0; growing = 1 } else growing = 0
  before = $0
  next
}
/^(The above exception was the direct cause|During handling of the above exception)/ { chained = 1; more = 0; next }
more > 0 {
  if ($0 == "" || /^\[|^[Tt]erminate|^Exception ignored/) more = 0
  else { more--; if (growing) root = root "\n" $0 }
}
$0 != "" {
  if (chained) chained = 0
  if (/Watchdog caught collective/) over = 1
  # A rank that is late writes, when another's time is up, that it was asked for what its flight recorder has.
  if ($0 ~ OTHERS_GONE && $0 !~ /timeout from +rank [0-9]/) spoke = 1
  before = $0
  # torch's C++ stack follows what(): up to 60 lines.
  if (!/^frame #[0-9]+: |^Exception raised from /) { tail3 = tail2; tail2 = tail1; tail1 = $0 }
}
END {
  keep()
  for (r in noted) {
    c = code[r]
    t = ended_at(r)
    g = grade_at_end(r, c, t)
    if (is_exception(r, c, t) && said_last[r] && time["rank" r ".out"] < t) t = time["rank" r ".out"]
    choose(g, t, r, c)
  }
  for (r in seen) {
    if (r in noted || (r in ended && ended[r] == 0)) continue
    if (!has[r]) { if (!spoken[r]) { silent++; missing = r; is_silent[r] = 1 } continue }
    # It was ended while it failed, or its shell was killed.
    if (!is_logged[r] && grades[r] == OWN && said_last[r] && words[r] !~ /[Ss]ignal|SIGTERM|SIGINT|KeyboardInterrupt|SystemExit/)
      choose(DOUBTFUL, time["rank" r ".out"] + 0, r, ended[r] > 0 && ended[r] < 128 ? ended[r] : 1)
  }
  if (best == "") exit
  how = "failed"
  if (words[best] ~ MISMATCH && (odd = odd_one()) != "") { best = odd; best_code = code[best] }
  if (best_grade == GONE) {
    for (r in ended) if (ended[r] == 0 && (left == "" || ended_at(r) < ended_at(left))) left = r
    if (left == "" && match(words[best], /Ranks? [0-9]+ failed to pass/)) {
      named = substr(words[best], RSTART, RLENGTH); gsub(/[^0-9]/, "", named)
      if (is_silent[named]) { missing = named; silent = 1 }
    }
    if (left != "") { best = left; how = "left" } else if (silent == 1) { best = missing; how = "missing" }
  }
  print best, best_code, (node[best] == "" ? "-" : node[best]), (local_rank[best] == "" ? "-" : local_rank[best]), how, (has[best] ? after_lines[best] : 0)
}
