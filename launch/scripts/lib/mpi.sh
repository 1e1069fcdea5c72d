# mpi.sh - how MPI, the image's or the nodes', learns its rank from Slurm.
# only: KIT_MPI

# mpi::choose_type - sets KIT_MPI_TYPE for srun.
mpi::choose_type() {
  local -r known=" $(srun --mpi=list 2>&1 | tr -s '[:space:],' ' ') "
  local -a types=(pmix pmi2)
  # HPE's own MPI, which such a site's nodes have, knows no other.
  [[ -n "${KIT_IMAGE}" || ! "$(timeout 10 scontrol show config 2>/dev/null)" =~ MpiDefault\ *=\ *cray_shasta ]] || types=(cray_shasta)
  [[ "${SLURM_MPI_TYPE:-none}" == none ]] || types=("${SLURM_MPI_TYPE}") # as host_setup may say
  for KIT_MPI_TYPE in "${types[@]}"; do
    [[ "${known}" != *" ${KIT_MPI_TYPE} "* ]] || return 0
  done
  local problem='neither pmix nor pmi2'
  ((${#types[@]} == 2)) || problem="no ${types[0]}"
  kit::die "this site's Slurm has ${problem} for MPI programs" \
    "see: srun --mpi=list; programs without MPI: \`launcher: srun\`"
}
