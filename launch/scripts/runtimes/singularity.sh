# runtimes/singularity.sh - as apptainer.sh, by the command of SingularityCE.
# images: .sif .sqsh .squashfs folder
# tool: singularity
# auto: 4
# instead-of: apptainer
# user-namespaces: unless-setuid

KIT_TOOL=singularity
source "${KIT_RUN_DIR}/lib/sif.sh"
