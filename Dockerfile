# The training image, on either base:
#   docker build -t train .                                            NVIDIA's PyTorch, for GPUs
#   docker build -t train --build-arg BASE_IMAGE=python:3.11-slim .    CPU, for laptops and tests
# Where pip cannot reach an index, put wheels into wheels/ first: pip download -d wheels -r containers/requirements-cpu.txt
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.09-py3
FROM ${BASE_IMAGE}

COPY containers/requirements*.txt wheels* /tmp/install/

# A base that has torch keeps it: NVIDIA's build matches its CUDA, NCCL and drivers, and its pip constraints pin the rest.
RUN set -eu; cd /tmp/install; \
    torch() { python3 -c 'import torch; print(torch.__version__)'; }; \
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore; \
    if ls ./*.whl >/dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/tmp/install; fi; \
    if before="$(torch 2>/dev/null)"; then \
      python3 -m pip install -r requirements.txt; \
      [ "$(torch)" = "$before" ] || { echo "torch changed from $before to $(torch)" >&2; exit 1; }; \
    else \
      python3 -m pip install -r requirements-cpu.txt; \
    fi; \
    cd /; rm -rf /tmp/install; torch
