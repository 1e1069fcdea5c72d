#!/usr/bin/env bash
# install.sh - builds Horovod's last release, 0.28.1, for the image's torch. Unchanged it does not compile: it asks for C++14,
# and today's torch stops with "C++17 or later compatible compiler is required to use PyTorch".
set -euo pipefail
cd -- "$(dirname -- "$0")"

# Installs only what the base lacks. NVIDIA's images have HPC-X, which fits their UCX and CUDA: beside a second MPI, CMake could
# choose either.
headers="$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')"
lacking=()
[[ -e "${headers}/Python.h" ]] || lacking+=(python3-dev)
command -v mpicc >/dev/null || lacking+=(libopenmpi-dev openmpi-bin)
for tool in cmake g++ make; do
  command -v "${tool}" >/dev/null || lacking+=("${tool}")
done
if ((${#lacking[@]} > 0)); then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${lacking[@]}"
  rm -rf /var/lib/apt/lists/*
fi

export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [[ -d wheels ]]; then
  export PIP_NO_INDEX=1 PIP_FIND_LINKS="${PWD}/wheels"
fi
python3 -m pip install -r requirements.txt
python3 -m pip download --no-deps --no-binary :all: --no-build-isolation horovod==0.28.1
tar -xzf horovod-0.28.1.tar.gz
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' horovod-0.28.1/CMakeLists.txt horovod-0.28.1/horovod/torch/CMakeLists.txt

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
if command -v nvcc >/dev/null; then
  export HOROVOD_GPU_OPERATIONS=NCCL
fi
MAKEFLAGS="-j$(nproc)" python3 -m pip install --no-build-isolation --no-deps ./horovod-0.28.1
