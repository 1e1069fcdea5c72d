# runtimes/apptainer.sh - runs the image file as it is; there is nothing to create. Its functions are in lib/sif.sh.
# images: .sif .sqsh .squashfs folder
# tool: apptainer
# auto: 3
# user-namespaces: unless-setuid
# mounts-data-images: yes

KIT_TOOL=apptainer
source "${KIT_RUN_DIR}/lib/sif.sh"
