# runtimes/apptainer.sh - runs the image file as it is; there is nothing to create.
# images: .sif .sqsh .squashfs folder
# tool: apptainer
# auto: 3
# user-namespaces: unless-setuid
# mounts-data-images: yes

source "${KIT_RUN_DIR}/lib/image.sh"
source "${KIT_RUN_DIR}/lib/sif.sh"

runtime::check() { sif::check apptainer; }
runtime::prepare() { :; }
runtime::exec() { sif::exec apptainer "$@"; }
runtime::setuid() { sif::setuid apptainer; }
runtime::bare_shell() { sif::bare_shell apptainer; }
