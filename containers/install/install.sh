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

torch_version() { python3 -c 'import torch; print(torch.__version__)'; }

# A base that has torch keeps it: NVIDIA's build matches its CUDA, NCCL and drivers. Its pip constraints, which pin the
# rest, are in the image's PIP_CONSTRAINT.
if before="$(torch_version 2>/dev/null)"; then
  python3 -m pip install -r requirements.txt
  [ "$(torch_version)" = "${before}" ] || {
    echo "torch changed from ${before} to $(torch_version)" >&2
    exit 1
  }
else
  python3 -m pip install -r requirements-cpu.txt
fi
torch_version
