#!/usr/bin/env bash
# Builds what the test cluster runs: container images, and the image files that jobs use.
# Quick when nothing changed: every image is tagged by a hash of what it was made from. May be called by several at the same
# time: each image has a lock of its own, and who waits for it finds it made. The branches of `all` are made at the same time.
#
#   images.sh nodes    kit-test/node and kit-test/controller
#   images.sh bases    both, and kit-test/python, the base of kit-test/train: they need neither Python nor kit on this machine
#   images.sh train    kit-test/train, from the repository's Dockerfile
#   images.sh files    train.sif and train.sqsh, made from kit-test/train
#   images.sh all      all of these, and what install.sh puts on a controller (the default)
#   images.sh small    kit-test/small: a shell and four tools of debian:trixie, for tests of kit build
#   images.sh tensorflow, images.sh horovod     likewise of containers/tensorflow and containers/horovod
#   images.sh packages, images.sh ray
#                      the packages of containers/tensorflow, and of train/frameworks/ray, to be mounted into containers of
#                      kit-test/train: prints the folder's path on the nodes
#   images.sh vision   a folder for kit build, with wheels of torch and torchvision (2.7 GB); prints its path
#   images.sh clean    removes all of these, and the wheels
#
# KIT_CLUSTER_DEBIAN   of nodes and controller (trixie); another one's images have its name at their end
# KIT_CACHE            wheels and image files (~/.cache/kit-tests)
# KIT_CLUSTER_DEBS     a folder of .deb files for the nodes: Enroot, Pyxis (tests/cluster/debs)
# KIT_TRAIN_SOURCE     a folder with Dockerfile and containers/ (the repository)
set -euo pipefail
here="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
# shellcheck source=tests/cluster/lib.sh
source "${here}/lib.sh"

readonly repo="${here%/tests/cluster}"
readonly source_dir="${KIT_TRAIN_SOURCE:-${repo}}"
readonly debs_dir="${KIT_CLUSTER_DEBS:-${here}/debs}"
cache="$(lib::cache)"
readonly cache

work=""
images::cleanup() {
  [[ -z "${work}" ]] || rm -rf --one-file-system "${work}"
}
trap images::cleanup EXIT

# --- base images ---------------------------------------------------------------------------

images::exists() {
  local -r image="$1"
  docker image inspect "${image}" >/dev/null 2>&1
}

images::id() {
  local -r image="$1"
  docker image inspect --format '{{.Id}}' "${image}"
}

images::base() {
  local -r suite="$1"
  if images::exists "debian:${suite}"; then
    return
  fi
  say "debian:${suite}: asking the registry"
  if timeout 60 docker pull --quiet "debian:${suite}" >/dev/null 2>&1; then
    return
  fi
  images::debootstrap "${suite}"
}

images::debootstrap() {
  local -r suite="$1"
  local -r root="${work}/${suite}" log="${cache}/debootstrap-${suite}.log"
  need debootstrap "apt-get install debootstrap, or reach a registry that has debian:${suite}"
  [[ "$(id -u)" == 0 ]] || die "debian:${suite}: no registry answers, and debootstrap needs root" \
    "run ${here}/images.sh once as root"
  say "debian:${suite}: no registry answers, making it with debootstrap"
  # No mirror named: debootstrap's own default.
  debootstrap --variant=minbase "${suite}" "${root}" >"${log}" 2>&1 ||
    die "debootstrap ${suite} failed" "read ${log}"
  # As in Debian's own images: without what apt downloaded, and without an fsync for each file of a package, which is most
  # of the time that apt takes in a build.
  rm -rf "${root}"/var/cache/apt/archives/*.deb "${root}"/var/lib/apt/lists/*
  printf 'force-unsafe-io\n' >"${root}/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"
  printf 'Acquire::Languages "none";\n' >"${root}/etc/apt/apt.conf.d/docker-no-languages"
  # A mirror that stands still is of use all the same; sid's lists are for one week.
  [[ "${suite}" != sid ]] || printf 'Acquire::Check-Valid-Until "false";\n' >"${root}/etc/apt/apt.conf.d/any-date"
  tar -C "${root}" -c . | docker import - "debian:${suite}" >/dev/null
  rm -rf --one-file-system "${root}"
}

# --- building ------------------------------------------------------------------------------

# One line for a folder: the names, modes and contents of all its files.
images::hash() {
  local -r dir="$1" base="$2"
  {
    images::id "${base}"
    cd "${dir}"
    find . -type f -printf '%m %p\n' | LC_ALL=C sort
    find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -c 1-12
}

images::build() {
  local -r image="$1" base="$2" context="$3" hash="$4"
  local -r log="${cache}/build-${image##*/}.log"
  say "${image}: building"
  docker build --build-arg "BASE_IMAGE=${base}" --tag "${image}:${hash}" "${context}" \
    >"${log}" 2>&1 || die "${image} does not build" "read ${log}"
}

# Makes the image from a folder, unless it is there.
images::make() {
  local -r image="$1" base="$2" context="$3"
  local hash
  hash="$(images::hash "${context}" "${base}")"
  images::exists "${image}:${hash}" || images::build "${image}" "${base}" "${context}" "${hash}"
  docker tag "${image}:${hash}" "${image}:latest"
}

# Runs functions of this file at the same time, each in a process of its own, and fails when one of them does.
images::together() {
  local name pid status=0
  local -a pids=()
  for name in "$@"; do
    "${name}" &
    pids+=("$!")
  done
  for pid in "${pids[@]}"; do
    wait "${pid}" || status=1
  done
  ((status == 0)) || exit 1
}

images::nodes() {
  lib::lock images-nodes 1800
  images::base "${lib_debian}"
  local -r node="${work}/node" controller="${work}/controller"
  mkdir -p "${node}/debs" "${controller}"
  cp "${here}/node.Dockerfile" "${node}/Dockerfile"
  cp "${here}/sid-source" "${here}/entrypoint.sh" "${here}/enroot.conf" "${here}/enroot-stub" "${here}/pyxis-stub" "${here}/tiny-image" "${node}/"
  if [[ -d "${debs_dir}" ]]; then
    find "${debs_dir}" -maxdepth 1 -name '*.deb' -exec cp -t "${node}/debs/" {} +
  fi
  # COPY refuses a folder without files.
  touch "${node}/debs/.keep"
  images::make "${lib_node}" "debian:${lib_debian}" "${node}"
  cp "${here}/controller.Dockerfile" "${controller}/Dockerfile"
  images::make "${lib_controller}" "${lib_node}" "${controller}"
}

images::small() {
  local -r log="${cache}/build-small.log"
  local hash
  lib::lock images-nodes 1800
  images::base trixie
  hash="$({ images::id debian:trixie && declare -f images::small; } | sha256sum | cut -c 1-12)"
  if images::exists "kit-test/small:${hash}"; then
    docker tag "kit-test/small:${hash}" kit-test/small
    return
  fi
  # shellcheck disable=SC2016  # the container's shell expands it
  docker run --rm --network none debian:trixie bash -euo pipefail -c '
        mkdir -p /small/{dev,etc,proc,root,run,sys,tmp,usr/bin,usr/lib,usr/lib64,var/tmp}
        cd /small
        ln -s usr/bin usr/lib usr/lib64 .
        cp -L /usr/bin/{cat,env,head,sh,sleep} usr/bin/
        cp /etc/passwd /etc/group etc/
        for tool in usr/bin/*; do ldd "${tool}" | grep -o "/[^ ]*"; done | sort -u | while read -r library; do
          cp -L --parents "/usr/${library#/usr/}" .
        done
        tar -c .' 2>"${log}" | docker import --change 'ENV PATH=/usr/bin' - "kit-test/small:${hash}" >/dev/null ||
    die "kit-test/small cannot be made" "read ${log}"
  docker tag "kit-test/small:${hash}" kit-test/small
}

# --- the training image --------------------------------------------------------------------

# Puts the wheels of the requirements, and of nothing that the constraint forbids, into a folder of the cache, and prints
# the folder. Further arguments are for another pip download, into the same folder.
images::wheels() {
  local -r requirements="$1" constraint="${2:-}"
  local -a more=("${@:3}")
  local key dir version word
  # What the files say, and not where they lie: each checkout would have wheels of its own.
  key="$(for word in "${requirements}" "${constraint}" "${more[@]}"; do
    if [[ -f "${word}" ]]; then cat "${word}"; else printf '%s\n' "${word}"; fi
  done | sha256sum | cut -c 1-12)"
  dir="${cache}/wheels/${key}"
  lib::lock "wheels-${key}" 1800
  if [[ ! -d "${dir}" ]]; then
    version="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    [[ "${version}" == 3.11 ]] || die \
      "python3 is ${version}, and the training image's is 3.11: pip would take other wheels" \
      "put a Python 3.11 first on PATH"
    say "downloading wheels"
    mkdir -p "${work}/wheels" "${cache}/wheels"
    printf '%s\n' "${constraint}" >"${work}/constraint.txt"
    python3 -m pip download --quiet --only-binary=:all: --dest "${work}/wheels" --constraint "${work}/constraint.txt" \
      --requirement "${requirements}" >"${cache}/wheels.log" 2>&1 ||
      die "pip download of ${requirements} failed" "read ${cache}/wheels.log"
    ((${#more[@]} == 0)) || python3 -m pip download --quiet --no-deps --dest "${work}/wheels" "${more[@]}" >>"${cache}/wheels.log" 2>&1 ||
      die "pip download ${more[*]} failed" "read ${cache}/wheels.log"
    mv -T "${work}/wheels" "${dir}"
  fi
  printf '%s\n' "${dir}"
}

# A folder from which `kit build --device cpu` makes the whole training image, torchvision included: prints its path.
# PyPI's own torch, since a local version of it has no torchvision to match.
images::vision() {
  local -r place="${cache}/vision" requirements="${source_dir}/containers/install/requirements-cpu.txt"
  local wheels
  images::python
  wheels="$(images::wheels "${requirements}" "torch===$(sed -n 's/^torch==//p' "${requirements}")")"
  rm -rf "${place}"
  mkdir -p "${place}"
  cp "${source_dir}/Dockerfile" "${place}/"
  cp -a "${source_dir}/containers" "${place}/"
  cp -al "${wheels}" "${place}/containers/install/wheels"
  printf '%s\n' "${place}"
}

# A folder from which `kit build` makes one of the further images of containers/: prints its path.
images::context() {
  local -r name="$1"
  local -r source="${source_dir}/containers/${name}" place="${cache}/contexts/${name}"
  local wheels
  images::python
  wheels="$(images::wheels "${source}/requirements.txt" "" "${@:2}")"
  rm -rf "${place}"
  mkdir -p "${cache}/contexts"
  cp -a "${source}" "${place}"
  cp -al "${wheels}" "${place}/wheels"
  printf '%s\n' "${place}"
}

images::tensorflow() { images::context tensorflow --requirement "${source_dir}/containers/tensorflow/requirements-alone.txt"; }

# Unpacks Python packages for containers of kit-test/train into a folder of the cache, and prints its path on the nodes. Those
# of `alone` come without their dependencies. This costs a tenth of an image: pip unpacks them, and nobody packs them again.
images::unpacked() {
  local -r name="$1" wheels="$2" requirements="$3" alone="${4:-}"
  local -r place="${cache}/images/${name}-${wheels##*/}" log="${cache}/packages.log"
  lib::lock images-packages 1800
  if [[ ! -d "${place}" ]]; then
    local -a pip=(python3 -m pip install --quiet --no-compile --no-index --find-links "${wheels}" --target "${work}/packages")
    mkdir -p "${cache}/images"
    if ! "${pip[@]}" --requirement "${requirements}" >"${log}" 2>&1 ||
      { [[ -n "${alone}" ]] && ! "${pip[@]}" --no-deps --requirement "${alone}" >>"${log}" 2>&1; }; then
      die "the packages of ${requirements} cannot be unpacked" "read ${log}"
    fi
    chmod -R go=u-w "${work}/packages"
    mv -T "${work}/packages" "${place}"
  fi
  printf '/images/%s\n' "${place##*/}"
}

images::packages() {
  local -r source="${source_dir}/containers/tensorflow"
  local wheels place
  wheels="$(images::wheels "${source}/requirements.txt" "" --requirement "${source}/requirements-alone.txt")"
  place="$(images::unpacked tensorflow "${wheels}" "${source}/requirements.txt" "${source}/requirements-alone.txt")"
  # Ranks in containers cannot write there: each would compile it, which takes longer than all else of an import. Where it
  # cannot be imported here, they do so.
  [[ -d "${cache}${place}/tensorflow/__pycache__" ]] ||
    PYTHONPATH="${cache}${place}" PYTHONDONTWRITEBYTECODE='' python3 -c 'import tensorflow, tf_keras' >>"${cache}/packages.log" 2>&1 || true
  printf '%s\n' "${place}"
}

images::ray() {
  local -r requirements="${source_dir}/train/frameworks/ray/requirements.txt"
  local wheels
  wheels="$(images::wheels "${requirements}")"
  images::unpacked ray "${wheels}" "${requirements}"
}

images::horovod() {
  images::train >&2
  images::context horovod --no-binary :all: --no-build-isolation horovod==0.28.1
}

# The programs of the tests do without it; and where pip finds a torch for CPUs but no torchvision to match, it would not
# load. tests/cluster/engine/test_image_file.py has an image with both.
images::without_torchvision() {
  local -r requirements="$1"
  sed -i '/^torchvision/d' "${requirements}"
}

images::python() {
  local -r python="${work}/python"
  lib::lock images-python 1800
  images::base bookworm
  mkdir -p "${python}"
  cp "${here}/python.Dockerfile" "${python}/Dockerfile"
  images::make kit-test/python debian:bookworm "${python}"
}

images::train_wheels() {
  images::wheels "${work}/requirements.txt" >"${work}/wheels-folder"
}

images::train() {
  local -r context="${work}/train"
  local hash wheels
  [[ -f "${source_dir}/Dockerfile" ]] || die "${source_dir}/Dockerfile: no such file" \
    "set KIT_TRAIN_SOURCE to a folder with Dockerfile and containers/"
  lib::lock images-train 1800
  mkdir -p "${context}"
  cp "${source_dir}/Dockerfile" "${context}/"
  cp -a "${source_dir}/containers" "${context}/"
  rm -rf "${context}/containers/install/wheels"
  images::without_torchvision "${context}/containers/install/requirements-cpu.txt"
  cp "${context}/containers/install/requirements-cpu.txt" "${work}/requirements.txt"
  images::together images::python images::train_wheels
  wheels="$(<"${work}/wheels-folder")"
  # The wheels' names are in the hash, and not their gigabytes.
  ls "${wheels}" >"${context}/wheels.txt"
  hash="$(images::hash "${context}" kit-test/python)"
  if ! images::exists "kit-test/train:${hash}"; then
    # Links, not copies: wheels and context are both below the cache.
    cp -al "${wheels}" "${context}/containers/install/wheels"
    images::build kit-test/train kit-test/python "${context}" "${hash}"
  fi
  docker tag "kit-test/train:${hash}" kit-test/train:latest
}

# --- image files ---------------------------------------------------------------------------

# kit build's own file, under the name that jobs of the tests use; and Apptainer's format around it, as --to sif makes it.
# Where neither the image nor kit has changed, kit is not asked.
images::file() {
  local -r dir="$1"
  local found key
  lib::lock images-file 1800
  key="$({
    images::id kit-test/train:latest
    find "${repo}/launch/kit" -name '*.py' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -c 1-12)"
  [[ "$(cat "${dir}/train.key" 2>/dev/null)" != "${key}" || ! -f "${dir}/train.sqsh" || ! -f "${dir}/train.sif" ]] || return 0
  kit build dockerd://kit-test/train:latest --name train --images "${dir}" >"${cache}/kit-build.log" 2>&1 ||
    die "kit build failed" "read ${cache}/kit-build.log"
  found="$(sed -n 's/^  "file": "\(.*\)",/\1/p' "${dir}/train.json")"
  ln -sfn "${found}" "${dir}/train.sqsh"
  # shellcheck disable=SC2016  # the container's shell expands it
  [[ -f "${dir}/${found%.sqsh}.sif" ]] || docker run --rm --network none --volume "${dir}:/out" --entrypoint bash "${lib_node}" -euc '
        cd /out
        apptainer sif new "$1.partial"
        apptainer sif add --datatype 4 --partfs 1 --parttype 2 --partarch "$(case "$(uname -m)" in aarch64) echo 4 ;; *) echo 2 ;; esac)" "$1.partial" "$2"
        mv "$1.partial" "$1"
    ' build "${found%.sqsh}.sif" "${found}" >"${cache}/sif.log" 2>&1 || die "the .sif cannot be made" "read ${cache}/sif.log"
  ln -sfn "${found%.sqsh}.sif" "${dir}/train.sif"
  printf '%s\n' "${key}" >"${dir}/train.key"
}

images::bases() { images::together images::nodes images::python; }

images::nodes_with_kit() {
  images::nodes
  "${here}/install.sh" prepare
}

images::files() {
  images::together images::nodes_with_kit images::train
  images::file "${cache}/images"
}

# Volumes of clusters that are gone: cluster.sh removes them a while after its containers, unless it is ended before. They hold
# unpacked images, of some gigabytes each run.
images::forget_volumes() {
  docker volume ls --quiet --filter dangling=true --filter label=kit.cluster | xargs --no-run-if-empty docker volume rm >/dev/null 2>&1 || true
}

images::clean() {
  local -a images
  mapfile -t images < <(docker image ls --format '{{.Repository}}:{{.Tag}}' 'kit-test/*')
  ((${#images[@]} == 0)) || docker image rm "${images[@]}" >/dev/null
  rm -rf "${cache}/images" "${cache}/wheels" "${cache}/vision" "${cache}/contexts" "${cache}/kit-trees"
  say "removed ${#images[@]} images, and ${cache}/images and ${cache}/wheels"
}

images::main() {
  local -r target="${1:-all}"
  "${here}/engine.sh"
  mkdir -p "${cache}"
  # Below the cache, so that links instead of copies work.
  work="$(mktemp -d -p "${cache}" work.XXXXXX)"
  chmod 755 "${work}"
  case "${target}" in
    nodes | small | bases) "images::${target}" ;;
    train) images::train ;;
    files) images::files ;;
    all)
      images::forget_volumes
      images::files
      ;;
    vision | tensorflow | packages | ray | horovod) "images::${target}" ;;
    clean) images::clean ;;
    *) die "unknown target '${target}'" "one of: nodes small bases train files vision tensorflow packages ray horovod all clean" 2 ;;
  esac
}

images::main "$@"
