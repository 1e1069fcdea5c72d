# shellcheck shell=bash
# nodes/all.sh - the job starts on all nodes that it has.

nodes::choose() { :; }
nodes::answer() { :; }
