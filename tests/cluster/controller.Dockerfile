# The controller, which is also the login node: a node plus the Python that `kit` runs on, and what a laptop needs of it.
ARG BASE_IMAGE=kit-test/node
FROM ${BASE_IMAGE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv docker-registry skopeo openssh-server rsync \
 && rm -rf /var/lib/apt/lists/*
