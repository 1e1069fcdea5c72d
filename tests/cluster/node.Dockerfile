# A Slurm node: slurmctld, slurmd, munge, Apptainer and the tools that launch scripts may use.
# No Python on purpose: a compute node must not need one.
ARG BASE_IMAGE=debian:trixie
FROM ${BASE_IMAGE}
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8

RUN apt-get update \
 && apt-get install -y --no-install-recommends \
        slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge tini \
        squashfs-tools squashfuse fuse-overlayfs fuse2fs fuse3 uidmap libcap2-bin \
        bash curl gawk jq parallel bsdextrautils zstd pigz \
        procps iproute2 iptables iputils-ping netcat-openbsd util-linux ca-certificates \
 && rm -rf /var/lib/apt/lists/*

# Apptainer is only in sid. Its source is the image's own one with the suite changed;
# everything else in sid is pinned below what is installed. Bookworm's C library is too old for it.
COPY sid-source /tmp/sid-source
RUN bash /tmp/sid-source \
 && printf 'Package: *\nPin: release a=unstable\nPin-Priority: 100\n\nPackage: apptainer\nPin: release a=unstable\nPin-Priority: 990\n' \
        > /etc/apt/preferences.d/sid \
 && apt-get update \
 && { apt-get install -y --no-install-recommends apptainer \
    || { rm /etc/apt/preferences.d/sid && apt-get install -y --no-install-recommends --target-release unstable apptainer; }; } \
 && rm -rf /var/lib/apt/lists/* /etc/apt/sources.list.d/sid.* /tmp/sid-source

# Enroot and Pyxis, when there are packages of them; otherwise stubs, which say that they are.
COPY debs/ enroot.conf enroot-stub pyxis-stub /tmp/debs/
RUN set -e; if ls /tmp/debs/*.deb >/dev/null 2>&1; then \
        apt-get update \
        && apt-get install -y --no-install-recommends /tmp/debs/*.deb \
        && install -D -m 644 /tmp/debs/enroot.conf /etc/enroot/enroot.conf.d/site.conf \
        && rm -rf /var/lib/apt/lists/*; \
    fi; \
    command -v enroot >/dev/null || for name in enroot enroot-nsenter enroot-mount; do install -m 755 /tmp/debs/enroot-stub "/usr/local/bin/$name"; done; \
    ls /usr/lib/*/slurm/spank_pyxis.so >/dev/null 2>&1 || install -m 755 /tmp/debs/pyxis-stub /usr/local/bin/srun; \
    rm -rf /tmp/debs

RUN useradd --uid 1000 --user-group --create-home --shell /bin/bash ada \
 && printf 'ada:100000:65536\n' | tee /etc/subuid > /etc/subgid \
 && install -d -m 1777 /scratch /shared /images \
 && install -d -o slurm -g slurm /var/spool/slurmctld /var/log/slurm \
 && install -d /var/spool/slurmd /etc/slurm/plugstack.conf.d

COPY entrypoint.sh /usr/local/sbin/cluster-entrypoint
COPY tiny-image /usr/local/bin/tiny-image
ENTRYPOINT ["tini", "-g", "--", "/usr/local/sbin/cluster-entrypoint"]
