# fabric.sh - which fast network a node has, and what the container lacks of what NCCL needs for it. Without that, NCCL says nothing and uses
# TCP, or fails. All of it in bash, without a fork. A job without GPUs does not use NCCL. See docs/fabric.md.
# only: KIT_GPUS_PER_NODE

readonly KIT_LEAST_LOCKED=67108864 # bytes, 64 MiB; the usual limits are 64 KiB and 8 MiB

# fabric::look ROOT - sets KIT_FABRIC to four words: ib, roce, efa, cxi (Slingshot), opa (Omni-Path), ethernet or none; the libraries of
# rdma-core that drive its adapters; how many of its links are up; and which links are down. ROOT is empty, but for tests.
fabric::look() {
  local -A links=() drivers=()
  local card port kind line name value layer driver found down=''
  for card in "$1"/sys/class/infiniband/*; do
    [[ -e "${card}/device" ]] || continue # what software makes, such as rxe, is no faster than TCP
    driver='?'
    while IFS='=' read -r name value; do [[ "${name}" != DRIVER ]] || driver="${value}"; done 2>/dev/null <"${card}/device/uevent" || true
    for port in "${card}"/ports/*; do
      [[ -d "${port}" ]] || continue
      fabric::read "${port}/link_layer"
      layer="${line}" kind=ib
      [[ "${layer}" != Ethernet ]] || kind=roce
      [[ "${driver}" != efa ]] || kind=efa
      [[ "${driver}" != hfi1 ]] || kind=opa
      fabric::read "${port}/state" # 4: ACTIVE; of one that cannot be read nothing is said
      fabric::add_link "${card##*/}/${port##*/}" "${line:-ACTIVE}"
      fabric::add_driver
    done
  done
  for card in "$1"/sys/class/cxi/cxi*; do
    [[ -e "${card}" ]] || continue
    kind=cxi
    fabric::read "${card}/device/properties/link" # 1, or 0
    fabric::add_link "${card##*/}" "${line/#1/ACTIVE}"
  done
  # One with a link that is up comes first.
  for found in {up,down}-{cxi,efa,opa,ib,roce} ''; do [[ -z "${links["${found:-none}"]:-}" ]] || break; done
  kind="${found#*-}" found="${links["up-${kind}"]:-}"
  found="${found//[! ]/}" # a blank for each
  [[ -n "${kind}" ]] || fabric::look_at_ethernet "$1"
  KIT_FABRIC="${kind} ${drivers["${kind}"]:--} ${#found} ${down:--}"
}

# fabric::read FILE - sets the caller's `line`, which stays empty where there is none.
fabric::read() {
  line=''
  { read -r line <"$1"; } 2>/dev/null || true
}

# fabric::add_link NAME STATE - to the caller's links.
fabric::add_link() {
  if [[ -z "$2" || "$2" == *ACTIVE* ]]; then
    links["up-${kind}"]+="$1 "
  else
    links["down-${kind}"]+="$1 "
    ((${#down} > 200)) || down+="${down:+,}$1"
  fi
}

# fabric::add_driver - the library that goes with the kernel's driver, to the caller's drivers.
fabric::add_driver() {
  case "${driver}" in
    mlx5_core | mlx4_core) value="${driver%_core}" ;;
    bnxt_en) value=bnxt_re ;;
    ice | i40e | idpf | irdma) value=irdma ;;
    efa) value=efa ;;
    hfi1) value=hfi1verbs ;;
    *) value='?' ;;
  esac
  [[ ",${drivers["${kind}"]:-}," == *",${value},"* ]] || drivers["${kind}"]+="${drivers["${kind}"]:+,}${value}"
}

# fabric::look_at_ethernet ROOT - sets the caller's `kind`.
fabric::look_at_ethernet() {
  kind=none
  for card in "$1"/sys/class/net/*; do
    [[ "${card##*/}" != @(lo|docker*|virbr*|br-*|veth*|cni*) ]] || continue
    fabric::read "${card}/type"
    [[ "${line}" != 1 ]] || kind=ethernet
  done
}

# fabric::find_lacks ROOT - sets KIT_LACKS to the files that NCCL needs for KIT_FABRIC, and that are not here.
fabric::find_lacks() {
  local -a folders words
  local driver plugin=libnccl-net
  local IFS=$' \t\n' # the job may have its own
  KIT_LACKS=()
  [[ ! -e "$1/dev/kfd" ]] || plugin=librccl-net # RCCL, on AMD's GPUs, loads no other
  kit::split words ' ' "${KIT_FABRIC}"
  local -r kind="${words[0]}"
  fabric::find_folders "$1"
  case "${kind}" in
    efa | cxi)
      fabric::has "$1" "${plugin}*.so*" || [[ -e "${NCCL_NET_PLUGIN:-}" ]] || KIT_LACKS+=("${plugin}.so")
      fabric::has "$1" libfabric.so.1 || KIT_LACKS+=(libfabric.so.1)
      ;;
    opa)
      if fabric::has "$1" "${plugin}*.so*"; then
        fabric::can_open "$1" /dev/hfi1_
        return 0
      fi
      ;;
  esac
  case "${kind}" in
    cxi) fabric::can_open "$1" /dev/cxi ;;
    ib | roce | efa | opa)
      fabric::has "$1" libibverbs.so.1 || KIT_LACKS+=(libibverbs.so.1)
      # One of them is enough: a node's other adapters may be for its storage.
      kit::split words , "${words[1]:-}"
      for driver in "${words[@]}"; do
        if [[ "${driver}" == [?-] ]] || fabric::has "$1" "libibverbs/lib${driver}-rdmav*.so"; then break; fi
        [[ "${driver}" != "${words[-1]}" ]] || KIT_LACKS+=("lib${words[0]}-rdmav*.so")
      done
      fabric::can_open "$1" /dev/infiniband/uverbs
      ;;
  esac
}

# fabric::find_folders ROOT - sets the caller's `folders` to those in which the loader looks for libraries.
fabric::find_folders() {
  local file line
  kit::split folders : "${LD_LIBRARY_PATH:-}"
  for file in "$1"/etc/ld.so.conf "$1"/etc/ld.so.conf.d/*.conf; do
    while read -r line _; do [[ "${line}" != /* ]] || folders+=("${line}"); done 2>/dev/null <"${file}" || true
  done
  folders+=({,/usr}/lib{,64} {,/usr}/lib/{x86_64,aarch64}-linux-gnu /usr/local/lib{,64} /opt/conda/lib "${CONDA_PREFIX:-}/lib")
}

# fabric::has ROOT PATTERN - whether one of the caller's folders has such a file.
fabric::has() {
  local folder
  for folder in "${folders[@]}"; do
    ! compgen -G "$1${folder}/$2" >/dev/null || return 0
  done
  return 1
}

# fabric::can_open ROOT BEGIN - whether a device whose name begins like that is here, and for this user.
fabric::can_open() {
  local device
  for device in "$1$2"*; do [[ ! -r "${device}" || ! -w "${device}" ]] || return 0; done
  KIT_LACKS+=("$2*")
}

# fabric::check ROOT - inside the container, with the variables that the ranks will have: notes what the node has and the container lacks,
# and warns of it, unless the user has chosen TCP.
fabric::check() {
  local name locked='' line where='the container' IFS=$' \t\n'
  local -a problems=() fixes=() words
  kit::split words ' ' "${KIT_FABRIC}"
  local -r kind="${words[0]}" up="${words[2]:-}" down="${words[3]:-}"
  ! fabric::is_unwanted "${kind}" || return 0
  while read -r _ _ name locked _; do [[ "${name}" != memory ]] || break; done 2>/dev/null <"$1/proc/self/limits" || locked=unlimited
  fabric::find_lacks "$1"
  event::note fabric fabric "${kind}" up "${up}" down "${down#-}" lacks "${KIT_LACKS[*]}" locked "${locked}"
  case "${kind}" in
    ib) name=InfiniBand ;;
    roce) name=RoCE ;;
    efa) name=EFA ;;
    cxi) name=Slingshot ;;
    opa) name=Omni-Path ;;
    *) return 0 ;;
  esac
  [[ "${KIT_RUNTIME}" != none ]] || where=it
  if ((${#KIT_LACKS[@]} > 0)); then
    printf -v line '%s, ' "${KIT_LACKS[@]}"
    problems+=("${where} lacks ${line%, }")
    fabric::add_fixes
  fi
  if [[ "${locked}" != unlimited ]] && ((locked < KIT_LEAST_LOCKED)); then
    problems+=("only $((locked >> 10)) KiB of memory may be locked (ulimit -l)")
    fixes+=("slurm: {propagate: NONE}, as in the profile infiniband, and LimitMEMLOCK=infinity for slurmd")
  fi
  if ((up == 0)); then
    problems+=("none of its links is up (${down//,/, })")
    fixes+=("have the cable, the switch and the subnet manager looked at: ibstat, or cxi_stat")
  fi
  ((${#problems[@]} > 0)) || return 0
  printf -v line '%s; ' "${problems[@]}"
  printf -v name 'this node has %s, but %s: NCCL would use TCP, which is many times slower, or fail' "${name}" "${line%; }"
  printf -v line '%s; ' "${fixes[@]}"
  kit::warn "${name}" "${line}if TCP is meant: env: {NCCL_NET: Socket}; see docs/fabric.md"
}

# fabric::is_unwanted KIND - whether the user, the site or the image has chosen TCP.
fabric::is_unwanted() {
  local -r network="${NCCL_NET:-}"
  [[ "${network,,}" != socket ]] || return 0
  case "$1" in
    ib | roce) [[ "${NCCL_IB_DISABLE:-0}" != 0 ]] ;;
    efa | cxi) [[ "${NCCL_NET_PLUGIN:-}" == none ]] ;;
    *) return 1 ;;
  esac
}

# fabric::add_fixes - to the caller's `fixes`, for KIT_LACKS.
fabric::add_fixes() {
  local -r lacks="${KIT_LACKS[*]}"
  [[ "${lacks}" != *ccl-net* && "${lacks}" != *libfabric* ]] ||
    fixes+=("have aws-ofi-nccl and libfabric in the image, or mount the site's and name their folders in LD_LIBRARY_PATH")
  [[ "${lacks}" != *verbs.so* && "${lacks}" != *rdmav* ]] ||
    fixes+=("install libibverbs1 and ibverbs-providers in the image (kit build --build-arg APT_PACKAGES=...), or libibverbs of Red Hat")
  [[ "${lacks}" == */dev/* ]] || return 0
  local device="/dev/${lacks##*/dev/}"
  device="${device/'uverbs*'/}" device="${device/'*'/0}" # the folder, or the first one
  if [[ "${KIT_RUNTIME}" == none ]]; then
    fixes+=("load the driver's module there (ib_uverbs for ${device}), and open the devices to users")
  else
    fixes+=("mount the devices: mounts: [${device%/}]")
  fi
}
