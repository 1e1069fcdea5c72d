#!/bin/sh
# install.sh - builds Horovod's last release, 0.28.1, for the torch that the image has. As it is, it does not compile: it
# asks for C++14, and today's torch ends in "C++17 or later compatible compiler is required to use PyTorch".
set -eu
cd -- "$(dirname -- "$0")"

export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [ -d wheels ]; then
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
