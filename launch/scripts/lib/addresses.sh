# addresses.sh - the addresses of all nodes, for launchers that need them: the master's is enough for most.
# only: KIT_NEEDS_ADDRESSES

# addresses::write - sets KIT_ADDRESSES to a file with a line for each node, its address and its name: 10,000 of them are too long
# for an argument.
addresses::write() {
  local -a hosts addresses
  local host address kind=v4
  [[ "${MASTER_ADDR}" != *:* ]] || kind=v6
  mapfile -t hosts < <(scontrol show hostnames "${KIT_HOSTS}")
  # One call for all. Of each host's lines the first has its name, too.
  mapfile -t addresses < <(getent "ahosts${kind}" "${hosts[@]}" 2>/dev/null | sed -n 's/ *STREAM ..*//p')
  addresses[0]="${MASTER_ADDR}" # found with more care; and one node alone needs no network
  if ((${#addresses[@]} != ${#hosts[@]})) || [[ " ${addresses[*]:1}" =~ \ (127\.|::1|::ffff:|fe80:) ]]; then
    addresses=("${MASTER_ADDR}")
    for host in "${hosts[@]:1}"; do
      address="$(net::address "${host}")" || exit 1 # -e does not reach into $(...)
      addresses+=("${address}")
    done
  fi
  # A requeued job's nodes may have an older file in memory, so each attempt has one of its own.
  KIT_ADDRESSES="${KIT_LOG_DIR}/addresses.${KIT_ATTEMPT}"
  paste -d ' ' <(printf '%s\n' "${addresses[@]}") <(printf '%s\n' "${hosts[@]}") >"${KIT_ADDRESSES}"
}
