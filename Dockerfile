# The training image. kit build makes a file of it for every runtime; Docker alone does, too:
#   docker build -t train .                                            NVIDIA's PyTorch, for GPUs
#   docker build -t train --build-arg BASE_IMAGE=python:3.11-slim .    CPU, for laptops and tests
# What it adds to its base is in containers/install/; containers/image.def and image.enroot.sh do the same without Docker.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.09-py3
# The base of: kit build --device cpu
ARG CPU_BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

COPY containers/install /tmp/install
RUN sh /tmp/install/install.sh && rm -rf /tmp/install
