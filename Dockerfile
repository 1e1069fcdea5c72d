# The training image. kit build makes a file of it for every runtime; Docker alone does, too:
#   docker build -t train .                                                     NVIDIA's PyTorch, for GPUs
#   docker build -t train --build-arg BASE_IMAGE=python:3.11-slim-bookworm .    CPU, for laptops and tests
# What it adds to its base is in containers/install/; containers/image.def and image.enroot.sh do the same without Docker.
#
# The base is chosen here, and a test compares the other recipes: NVIDIA's last release with CUDA 13.0, which is driver 580's
# own. That branch is the oldest that NVIDIA supports, until August 2028; releases from 25.12 on are built for driver 590 or
# later. GPUs: compute capability 7.5 (T4) or higher, since CUDA 13 has no V100.
# https://docs.nvidia.com/datacenter/tesla/drivers/supported-drivers-and-cuda-toolkit-versions.html
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.11-py3
# The base of: kit build --device cpu
ARG CPU_BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# install.sh explains them.
ARG TORCH_INDEX
ARG PIP_INDEX_URL
ARG APT_PACKAGES
ENV LANG=C.UTF-8

# Not a bind mount, which Docker has only with its plug-in buildx. So these files stay in a layer, which matters only for wheels.
COPY containers/install /tmp/install
RUN bash /tmp/install/install.sh && rm -rf /tmp/install
