#!/usr/bin/env bash
# Builds what the test cluster runs: container images, and the image files that jobs use.
# Quick when nothing changed: every image is tagged by a hash of what it was made from.
#
#   images.sh nodes    kit-test/node and kit-test/controller
#   images.sh train    kit-test/train, from the repository's Dockerfile
#   images.sh files    train.sif and train.sqsh, made from kit-test/train
#   images.sh all      all of these (the default)
#   images.sh clean    removes all of these, and the wheels
#
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
  local -r image="$1" base="$2" context="$3"
  local hash
  hash="$(images::hash "${context}" "${base}")"
  if ! images::exists "${image}:${hash}"; then
    local -r log="${cache}/build-${image##*/}.log"
    say "${image}: building"
    docker build --build-arg "BASE_IMAGE=${base}" --tag "${image}:${hash}" "${context}" \
      >"${log}" 2>&1 || die "${image} does not build" "read ${log}"
  fi
  docker tag "${image}:${hash}" "${image}:latest"
}

images::nodes() {
  images::base trixie
  local -r node="${work}/node" controller="${work}/controller"
  mkdir -p "${node}/debs" "${controller}"
  cp "${here}/node.Dockerfile" "${node}/Dockerfile"
  cp "${here}/sid-source" "${here}/entrypoint.sh" "${here}/enroot.conf" "${here}/enroot-stub" "${here}/pyxis-stub" "${here}/tiny-image" "${node}/"
  if [[ -d "${debs_dir}" ]]; then
    find "${debs_dir}" -maxdepth 1 -name '*.deb' -exec cp -t "${node}/debs/" {} +
  fi
  # COPY refuses a folder without files.
  touch "${node}/debs/.keep"
  images::build kit-test/node debian:trixie "${node}"
  cp "${here}/controller.Dockerfile" "${controller}/Dockerfile"
  images::build kit-test/controller kit-test/node "${controller}"
}

# --- the training image --------------------------------------------------------------------

# Puts the wheels of the requirements into a folder of the cache, and prints the folder.
images::wheels() {
  local -r requirements="$1"
  local key dir version
  key="$(sha256sum <"${requirements}" | cut -c 1-12)"
  dir="${cache}/wheels/${key}"
  if [[ ! -d "${dir}" ]]; then
    version="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    [[ "${version}" == 3.11 ]] || die \
      "python3 is ${version}, and the training image's is 3.11: pip would take other wheels" \
      "put a Python 3.11 first on PATH"
    say "kit-test/train: downloading wheels"
    mkdir -p "${work}/wheels" "${cache}/wheels"
    python3 -m pip download --quiet --only-binary=:all: --dest "${work}/wheels" \
      --requirement "${requirements}" >"${cache}/wheels.log" 2>&1 ||
      die "pip download of ${requirements} failed" "read ${cache}/wheels.log"
    mv -T "${work}/wheels" "${dir}"
  fi
  printf '%s\n' "${dir}"
}

images::train() {
  local -r python="${work}/python" context="${work}/train"
  [[ -f "${source_dir}/Dockerfile" ]] || die "${source_dir}/Dockerfile: no such file" \
    "set KIT_TRAIN_SOURCE to a folder with Dockerfile and containers/"
  images::base bookworm
  mkdir -p "${python}" "${context}"
  cp "${here}/python.Dockerfile" "${python}/Dockerfile"
  images::build kit-test/python debian:bookworm "${python}"

  local wheels
  wheels="$(images::wheels "${source_dir}/containers/requirements-cpu.txt")"
  cp "${source_dir}/Dockerfile" "${context}/"
  cp -a "${source_dir}/containers" "${context}/"
  # Links, not copies: wheels and context are both below the cache.
  cp -al "${wheels}" "${context}/wheels"
  images::build kit-test/train kit-test/python "${context}"
}

# --- image files ---------------------------------------------------------------------------

# Prints one list of an image's configuration (Env, Entrypoint, Cmd), an entry a line.
images::config() {
  local -r image="$1" field="$2"
  docker image inspect --format "{{range .Config.${field}}}{{println .}}{{end}}" "${image}" | sed '/^$/d'
}

# Prints an assignment as Apptainer writes it for an image that it converted itself.
images::apptainer_env() {
  local -r name="$1" value="$2"
  local quoted="${value//\\/\\\\}"
  quoted="${quoted//\"/\\\"}"
  quoted="${quoted//\$/\\\$}"
  quoted="${quoted//\`/\\\`}"
  if [[ "${name}" == PATH ]]; then
    printf 'export PATH="%s"\n' "${quoted}"
  else
    # shellcheck disable=SC2016  # the script that this writes expands it
    printf 'export %s="${%s:-"%s"}"\n' "${name}" "${name}" "${quoted}"
  fi
}

# What Enroot runs a container's command with: in WORKDIR, through ENTRYPOINT.
images::enroot_rc() {
  local -r workdir="$1" entrypoint="$2" cmd="$3"
  cat <<RC
cd "${workdir}" || exit 1
[ "\$#" -gt 0 ] || set -- ${cmd:-/bin/sh}
exec ${entrypoint} "\$@"
RC
}

# Writes what an exported root file system lacks of the image's configuration: ENV, WORKDIR and
# ENTRYPOINT, as Enroot and as Apptainer read them.
images::write_config() {
  local -r image="$1" root="$2"
  local assignment workdir
  local -a env entrypoint cmd
  mapfile -t env < <(images::config "${image}" Env)
  mapfile -t entrypoint < <(images::config "${image}" Entrypoint)
  mapfile -t cmd < <(images::config "${image}" Cmd)
  workdir="$(docker image inspect --format '{{.Config.WorkingDir}}' "${image}")"

  mkdir -p "${root}/etc" "${root}/.singularity.d/env"
  : >"${root}/etc/fstab"
  printf '%s\n' "${env[@]}" >"${root}/etc/environment"
  for assignment in "${env[@]}"; do
    images::apptainer_env "${assignment%%=*}" "${assignment#*=}"
  done >"${root}/.singularity.d/env/10-docker2singularity.sh"
  images::enroot_rc "${workdir:-/}" "${entrypoint[*]@Q}" "${cmd[*]@Q}" >"${root}/etc/rc"
  chmod -R u=rwX,go=rX "${root}"
  chmod 755 "${root}/etc/rc"
}

# One squashfs for Enroot, Pyxis and `apptainer exec`, in one pass and without a temporary copy.
# sqfstar of the node image: 4.5 and older reject its compressor options.
images::sqsh() {
  local -r image="$1" out="$2"
  local container
  mkdir -p "${work}/config"
  images::write_config "${image}" "${work}/config"
  container="$(docker create "${image}" true)"
  docker cp "${work}/config/." "${container}:/"
  # Device nodes cannot be unpacked by an ordinary user.
  docker export "${container}" |
    docker run --rm --interactive --network none --entrypoint sqfstar \
      --volume "${out%/*}:/out" kit-test/node \
      -comp zstd -Xcompression-level 3 -no-progress "/out/${out##*/}" 'dev/*' .dockerenv \
      >"${cache}/sqfstar.log" 2>&1 || die "${out}: sqfstar failed" "read ${cache}/sqfstar.log"
  docker rm "${container}" >/dev/null
}

# As the ordinary user: as root, Apptainer asks for capabilities that a container lacks.
images::sif() {
  local -r sqsh="$1" out="$2"
  docker run --rm --network none "${lib_caps[@]}" \
    --volume "${out%/*}:/out" --volume /scratch --entrypoint bash kit-test/node -c '
            chmod 666 /dev/fuse && install -d -o ada /scratch/build || exit 1
            export APPTAINER_TMPDIR=/scratch/build APPTAINER_CACHEDIR=/scratch/build/cache
            runuser -u ada -- apptainer build \
                --mksquashfs-args "-comp zstd -Xcompression-level 1 -processors $(nproc)" \
                "/scratch/build/image.sif" "/out/$1" && mv /scratch/build/image.sif "/out/$2"
        ' build "${sqsh##*/}" "${out##*/}" \
    >"${cache}/apptainer-build.log" 2>&1 ||
    die "${out}: apptainer build failed" "read ${cache}/apptainer-build.log"
}

images::files() {
  images::nodes
  images::train
  local id dir
  id="$(images::id kit-test/train)"
  id="${id#sha256:}"
  dir="${cache}/images/${id:0:12}"
  mkdir -p "${dir}"
  if [[ ! -f "${dir}/train.sqsh" ]]; then
    say "train.sqsh: making it"
    images::sqsh kit-test/train "${work}/train.sqsh"
    mv "${work}/train.sqsh" "${dir}/train.sqsh"
  fi
  if [[ ! -f "${dir}/train.sif" ]]; then
    say "train.sif: making it"
    ln "${dir}/train.sqsh" "${work}/train.sqsh"
    images::sif "${work}/train.sqsh" "${work}/train.sif"
    mv "${work}/train.sif" "${dir}/train.sif"
  fi
  # Relative, so that they hold inside a container too, where the folder is /images.
  ln -sfn "${dir##*/}/train.sqsh" "${cache}/images/train.sqsh"
  ln -sfn "${dir##*/}/train.sif" "${cache}/images/train.sif"
}

images::clean() {
  local -a images
  mapfile -t images < <(docker image ls --format '{{.Repository}}:{{.Tag}}' 'kit-test/*')
  ((${#images[@]} == 0)) || docker image rm "${images[@]}" >/dev/null
  rm -rf "${cache}/images" "${cache}/wheels"
  say "removed ${#images[@]} images, and ${cache}/images and ${cache}/wheels"
}

images::main() {
  local -r target="${1:-all}"
  "${here}/engine.sh"
  mkdir -p "${cache}"
  lib::lock images 1800
  # Below the cache, so that links instead of copies work.
  work="$(mktemp -d -p "${cache}" work.XXXXXX)"
  chmod 755 "${work}"
  case "${target}" in
    nodes) images::nodes ;;
    train) images::train ;;
    files | all) images::files ;;
    clean) images::clean ;;
    *) die "unknown target '${target}'" "one of: nodes train files all clean" 2 ;;
  esac
}

images::main "$@"
