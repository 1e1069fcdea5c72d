#!/usr/bin/env bash
# install.sh - adds what training needs to a base image. Every recipe of the image runs it inside, as root.
#
#   TORCH_INDEX     the index for torch, if the base has none [for CPUs, download.pytorch.org; for a base with CUDA, PyPI, whose
#                   build for CUDA is 2.5 GB larger: TORCH_INDEX=https://pypi.org/simple]
#   PIP_INDEX_URL   the index for all other packages [PyPI]
#   APT_PACKAGES    Debian packages to add [none], such as "ibverbs-providers librdmacm1" for InfiniBand without NCCL
#
# Where pip cannot reach an index, put wheels beside this file first:
#   pip download -d containers/install/wheels -r containers/install/requirements-cpu.txt --extra-index-url https://download.pytorch.org/whl/cpu
set -euo pipefail
cd -- "$(dirname -- "$0")"

export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
torch_index="${TORCH_INDEX:-}"
if [[ -d wheels ]]; then
  export PIP_NO_INDEX=1 PIP_FIND_LINKS="${PWD}/wheels"
  torch_index=''
elif [[ -z "${torch_index}" && -z "${CUDA_VERSION:-}" ]]; then
  torch_index=https://download.pytorch.org/whl/cpu
fi

install::die() {
  printf 'kit: %s\n  fix: %s\n' "$1" "$2" >&2
  exit 1
}

# Prints each package and its version from the metadata: while an image is built, a torch that needs the driver's libraries
# cannot be imported.
install::packages() {
  python3 -c '
import importlib.metadata as metadata
for name, version in sorted({(item.metadata["Name"].lower(), item.version) for item in metadata.distributions() if item.metadata["Name"]}):
    print(name, version)'
}

# install::add FILE - installs the packages that it lists, within the base's constraints.
install::add() {
  python3 -m pip install -r "$1" && return
  echo "kit: what $1 lists cannot be installed here: pip says why above" >&2
  if [[ -n "${PIP_CONSTRAINT:-}" ]]; then
    echo "  fix: this base allows only what ${PIP_CONSTRAINT} says: choose versions that fit, or another base" >&2
  fi
  exit 1
}

# install::torch FILE - installs FILE's torch and torchvision from an index of their own: PyPI has other builds of the same
# version.
install::torch() {
  python3 -m pip install --no-deps --index-url "${torch_index}" -r <(grep '^torch' "$1") && return
  install::die "torch cannot be had from ${torch_index}: pip says why above" \
    "name an index that is reached from here: kit build --build-arg TORCH_INDEX=URL; or put wheels into containers/install/wheels"
}

read -ra debian <<<"${APT_PACKAGES:-}"
if ((${#debian[@]} > 0)); then
  command -v apt-get >/dev/null || install::die "this base has no apt-get for ${debian[*]}" "another base, or a Dockerfile of your own"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${debian[@]}"
  rm -rf /var/lib/apt/lists/*
fi

# A base that has torch keeps it: NVIDIA's build matches its CUDA, NCCL and drivers. Its pip constraints, which pin the
# rest, are in the image's PIP_CONSTRAINT.
before="$(install::packages)"
torch="$(sed -n 's/^torch //p' <<<"${before}")"
if [[ -n "${torch}" ]]; then
  install::add requirements.txt
else
  [[ -z "${torch_index}" ]] || install::torch requirements-cpu.txt
  install::add requirements-cpu.txt
fi
# kit build puts the project's requirements.txt here, if it has one.
if [[ -f project.txt ]]; then
  install::add project.txt
fi
ldconfig

after="$(install::packages)"
now="$(sed -n 's/^torch //p' <<<"${after}")"
if [[ -n "${torch}" && "${now}" != "${torch}" ]]; then
  install::die "torch changed from ${torch} to ${now}" \
    "leave torch out of requirements.txt, as the base has one of its own, and what asks for another"
fi
while read -r package; do
  grep -qxF -- "${package}" <<<"${after}" || echo "kit: the base's ${package} was replaced" >&2
done <<<"${before}"
python3 -c 'import torch; print(torch.__version__)' ||
  echo "kit: torch ${now} does not import here, for the reason above; with the driver's libraries, on a node, it may" >&2
