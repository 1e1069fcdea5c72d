# stages/none.sh - the image is used where it lies.

stage::distribute() { :; }
stage::prepare() { :; }
stage::use() { :; }
