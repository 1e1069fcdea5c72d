#!/usr/bin/env bash
# Runs one job of each program in train/ with other versions of torch than that of the tests: not part of the suite.
#
#   versions.sh [VERSION...]     such as 2.4.1; without one: the oldest that kit allows, that of the GPU image, and the newest
#
# Each version has a virtual environment below KIT_CACHE (~/.cache/kit-tests), which stays. PyPI's torch brings CUDA, 2.5 GB; for the small one:
#   export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
#
# PYTHON   the interpreter to use (python3)
# Exit status: 0 where all programs ended well.
set -euo pipefail

root="$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")"
readonly root
readonly cache="${KIT_CACHE:-${HOME}/.cache/kit-tests}"
declare -rA arguments=(
  [bandwidth]='--sizes 1K --repeats 2'
  [cifar10]='--data DATA --width 4 --epochs 1 --batch-size 120 --limit-steps 2 --checkpoint DATA/cifar10.pt'
  [cifar10_original]='--data DATA --width 4 --epochs 1 --batch-size 120 --limit-steps 2 --workers 1'
  [digits]='--epochs 2'
)
declare -rA shapes=([model_parallel]=1x1)
declare -rA needs=([fsdp]=2.6 [pipeline]=2.6)                 # an older torch they refuse, in two lines
readonly not_torch='horovod_digits mpi_sum tensorflow_digits' # want more than torch

# versions::install VERSION FOLDER
versions::install() {
  local -r version="$1" folder="$2"
  [[ ! -f "${folder}/complete" ]] || return 0
  "${PYTHON:-python3}" -m venv "${folder}"
  local torch="torch==${version}"
  [[ "${version}" != newest ]] || torch=torch
  "${folder}/bin/pip" install --quiet --disable-pip-version-check "${torch}" 'numpy>=1.26,<3' 'scikit-learn>=1.4,<2' 'typer>=0.15,<0.29' 'pyyaml>=6.0,<7'
  touch "${folder}/complete"
}

# versions::is_older VERSION OTHER
versions::is_older() {
  [[ "$1" != "$2" && "$(printf '%s\n' "$1" "$2" | sort --version-sort | head -n 1)" == "$1" ]]
}

# versions::run VERSION FOLDER WORK - one line for each program; 1 where one failed.
versions::run() {
  local -r version="$1" folder="$2" work="$3"
  local program failed=0
  local -a words
  for job in "${root}"/train/*.yaml; do
    program="$(basename -- "${job}" .yaml)"
    [[ " ${not_torch} " != *" ${program} "* ]] || continue
    read -ra words <<<"${arguments[${program}]:-}"
    words=("${words[@]//DATA/${work}}")
    if PATH="${folder}/bin:${PATH}" PYTHONPATH="${root}/launch" CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1 timeout 900 \
      "${folder}/bin/python" -m kit run "${job}" -j "${shapes[${program}]:-1x2}" --output "${work}/${program}" -- "${words[@]}" \
      >"${work}/${program}.log" 2>&1; then
      printf 'torch %s  %s  ok\n' "${version}" "${program}"
    elif versions::is_older "${version}" "${needs[${program}]:-0}" && grep -q "^.*${program}.py: torch .* came with ${needs[${program}]}$" "${work}/${program}.log"; then
      printf 'torch %s  %s  refused: it needs %s\n' "${version}" "${program}" "${needs[${program}]}"
    else
      printf 'torch %s  %s  FAILED: %s\n' "${version}" "${program}" "${work}/${program}.log"
      failed=1
    fi
  done
  return "${failed}"
}

main() {
  local -a versions=("$@")
  ((${#versions[@]})) || versions=(2.4.1 2.10.0 newest)
  local version folder work status=0
  for version in "${versions[@]}"; do
    folder="${cache}/torch-${version}"
    versions::install "${version}" "${folder}"
    work="$(mktemp -d -t "kit-torch-${version}.XXXXXX")"
    PYTHONPATH="${root}/tests" "${folder}/bin/python" -c 'import cifar, pathlib, sys; cifar.make(pathlib.Path(sys.argv[1]))' "${work}"
    versions::run "${version}" "${folder}" "${work}" || status=1
  done
  exit "${status}"
}

main "$@"
