#!/bin/sh
# A compiler launcher: runs the command that follows and keeps what it says, with ptxas -v, in OBJECT.ptxas.
set -eu
previous=
for word; do
  [ "$previous" != -o ] || log=$word.ptxas
  previous=$word
done
"$@" 2>"$log" || {
  status=$?
  cat "$log" >&2
  exit $status
}
