# mpi.sh - how the image's MPI learns its rank from Slurm.
# only: KIT_MPI

# mpi::choose_type - sets KIT_MPI_TYPE for srun.
mpi::choose_type() {
  local -r known=" $(srun --mpi=list 2>&1 | tr -s '[:space:],' ' ') "
  for KIT_MPI_TYPE in pmix pmi2; do
    [[ "${known}" != *" ${KIT_MPI_TYPE} "* ]] || return 0
  done
  kit::die "this site's Slurm has neither pmix nor pmi2 for MPI programs" \
    "see: srun --mpi=list; programs without MPI: \`launcher: srun\`"
}
