#!/bin/sh
# needed_libraries.sh BINARY: the libraries that the loader must find. CUDA, NCCL and NVML are not among them: the binary
# starts where there are none.
set -eu
needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
echo "$needed"
[ -n "$needed" ] || { echo "no NEEDED entry read from $1"; exit 1; }
if echo "$needed" | grep -Ei 'cuda|cublas|nccl|nvidia|nvml|nvrtc'; then
  echo "$1 does not start without these"
  exit 1
fi
