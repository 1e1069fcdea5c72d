# runtimes/singularity.sh - as apptainer.sh, by the command of SingularityCE.
# images: .sif .sqsh .squashfs folder
# tool: singularity
# auto: 4
# instead-of: apptainer
# user-namespaces: unless-setuid

source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/sif.sh"

runtime::check() { sif::check singularity; }
runtime::prepare() { :; }
runtime::exec() { sif::exec singularity "$@"; }
runtime::setuid() { sif::setuid singularity; }
runtime::bare_shell() { sif::bare_shell singularity; }
