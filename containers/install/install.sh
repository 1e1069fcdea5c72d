#!/bin/sh
# install.sh - adds to a base image what training needs. All recipes of the image run it as root, inside.
#
# Where pip cannot reach an index, put wheels beside it first:
#   pip download -d containers/install/wheels -r containers/install/requirements-cpu.txt
set -eu
cd -- "$(dirname -- "$0")"

export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [ -d wheels ]; then
  export PIP_NO_INDEX=1 PIP_FIND_LINKS="${PWD}/wheels"
fi

# By what is written down of the packages: a torch that needs the driver's libraries does not import while an image is built.
packages() {
  python3 -c '
import importlib.metadata as metadata
for name, version in sorted({(item.metadata["Name"].lower(), item.version) for item in metadata.distributions() if item.metadata["Name"]}):
    print(name, version)'
}

# add FILE - what it lists, within what the base allows.
add() {
  python3 -m pip install -r "$1" && return
  echo "kit: what $1 lists cannot be installed here: pip says why above" >&2
  if [ -n "${PIP_CONSTRAINT:-}" ]; then
    echo "  fix: this base allows only what ${PIP_CONSTRAINT} says: choose versions that fit, or another base" >&2
  fi
  exit 1
}

# A base that has torch keeps it: NVIDIA's build matches its CUDA, NCCL and drivers. Its pip constraints, which pin the
# rest, are in the image's PIP_CONSTRAINT.
before="$(packages)"
torch="$(echo "${before}" | sed -n 's/^torch //p')"
if [ -n "${torch}" ]; then
  add requirements.txt
else
  add requirements-cpu.txt
fi
# The project's own, where kit build found a requirements.txt there.
if [ -f project.txt ]; then
  add project.txt
fi

after="$(packages)"
now="$(echo "${after}" | sed -n 's/^torch //p')"
if [ -n "${torch}" ] && [ "${now}" != "${torch}" ]; then
  echo "kit: torch changed from ${torch} to ${now}" >&2
  echo "  fix: leave torch out of requirements.txt, as the base has one of its own, and what asks for another" >&2
  exit 1
fi
echo "${before}" | while read -r package; do
  echo "${after}" | grep -qxF -- "${package}" || echo "kit: the base's ${package} was replaced" >&2
done
python3 -c 'import torch; print(torch.__version__)' ||
  echo "kit: torch ${now} does not import here, for the reason above; with the driver's libraries, on a node, it may" >&2
