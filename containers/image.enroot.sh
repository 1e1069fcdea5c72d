#!/bin/sh
# The training image where there is no Docker: kit build --engine enroot
# base: ${BASE_IMAGE}
# argument: BASE_IMAGE=nvcr.io/nvidia/pytorch:25.11-py3
# argument: CPU_BASE_IMAGE=python:3.11-slim-bookworm
# argument: TORCH_INDEX
# argument: PIP_INDEX_URL
# argument: APT_PACKAGES
# files: containers/install
#
# Runs as root in a container of the base, in a folder with these files. By hand:
#   enroot import -o base.sqsh docker://nvcr.io#nvidia/pytorch:25.11-py3 && enroot create -n image base.sqsh
#   enroot start --root --rw -m "$PWD:/context" image sh -c 'cd /context && sh containers/image.enroot.sh'
#   enroot export -o image.sqsh image
set -eu
bash containers/install/install.sh
