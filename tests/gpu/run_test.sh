#!/bin/sh
# What of tests/gpu/run can be tested without a GPU: the list of checks fits into 8 minutes, and without a driver, or
# with an unknown flag, one line says so.
set -u
run=$(dirname "$0")/run
failed=0
list=$("$run" --dry-run) || failed=1
total=$(echo "$list" | sed -n 's/^all *at most \([0-9]*\) s$/\1/p')
[ "${total:-999}" -le 480 ] || { echo "the checks take up to ${total:-?} s, expected at most 480"; failed=1; }

expect() {  # STATUS TEXT COMMAND...
  status=$1 text=$2
  shift 2
  said=$("$@" 2>&1)
  got=$?
  [ $got -eq "$status" ] || { echo "exit $got, expected $status: $*"; failed=1; }
  [ "$(echo "$said" | grep -c .)" -eq 1 ] || { echo "expected one line, found: $said"; failed=1; }
  echo "$said" | grep -q "$text" || { echo "expected '$text', found: $said"; failed=1; }
}
bare=$(mktemp -d)
for program in bash dirname readlink; do ln -s "$(command -v $program)" "$bare/$program"; done
expect 4 "not run: no usable NVIDIA GPU: no nvidia-smi" env PATH="$bare" "$run"
expect 2 "usage" "$run" --all
rm -r "$bare"
exit $failed
