# c10d.sh - with `elastic: true`: torchrun itself starts the ranks again, for which its nodes meet anew, by torch's c10d.
# only: KIT_ELASTIC

source "${KIT_RUN_DIR}/lib/network.sh"

# c10d::choose_rendezvous SECONDS - sets KIT_RENDEZVOUS and KIT_OWN_RESTARTS. Node rank 0 keeps the store and is told so, for torchrun would look
# for its own host name in the address; and each node's address, for the name may not resolve. A node whose `setup` takes longer may be late
# by SECONDS.
c10d::choose_rendezvous() {
  local -a kit_own
  local kit_conf=is_host=false
  [[ "${NODE_RANK}" != 0 ]] || kit_conf=is_host=true
  # torchrun itself would give the first node two minutes, and then the others ten.
  [[ ! -e "${KIT_RUN_DIR}/setup.sh" ]] || kit_conf+=",read_timeout=$1,join_timeout=$1"
  mapfile -t -s "${NODE_RANK}" -n 1 kit_own <"${KIT_ADDRESSES}"
  # torch would keep the store of the ranks over restarts, where they find the addresses of those that are gone: Gloo ends in
  # "connectFullMesh failed" (https://github.com/pytorch/pytorch/issues/135712; so with 2.13). So each round gets its own.
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  KIT_OWN_RESTARTS="${KIT_MAX_RESTARTS}"
  KIT_RENDEZVOUS=(
    --nnodes "${NNODES}" # all that were allocated: a range would have torchrun begin with a few when the others are late
    --rdzv-backend c10d
    --rdzv-endpoint "$(net::endpoint "${MASTER_ADDR}" "${MASTER_PORT}")"
    --rdzv-conf "${kit_conf}"
    --local-addr "${kit_own[0]%% *}"
  )
}
