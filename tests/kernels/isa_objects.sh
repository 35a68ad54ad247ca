#!/bin/sh
# isa_objects.sh avx2|avx512 OBJECT...
# An inline function that a kernel object shares with the rest of the program (a weak symbol) must be baseline code: the
# linker keeps any one copy, and a CPU without AVX would die in it. Functions that belong to the instruction set's own
# namespace, by name or by template argument, are found in no other object and may use it.
set -eu
isa=$1
shift
found=0
[ $# -gt 0 ] || { echo "no object given"; exit 2; }
for object in "$@"; do
  [ -r "$object" ] || { echo "$object: no such object"; exit 2; }
  weak=$(mktemp)
  nm "$object" | awk '$2 ~ /^[WVu]$/ || $1 ~ /^[WVu]$/ {print $NF}' | grep -v "${#isa}${isa}" >"$weak" || true
  # A line "address <symbol>:" begins a function. Every AVX instruction's name begins with v; BMI ones are listed.
  bad=$(objdump -d --no-show-raw-insn "$object" | awk -v weak="$weak" '
    BEGIN { while ((getline name < weak) > 0) shared[name] = 1 }
    /^[0-9a-f]+ <.*>:$/ { symbol = substr($2, 2, length($2) - 3); next }
    (symbol in shared) && ($2 ~ /^v[a-z]/ && $2 !~ /^ver[rw]$/ ||
                           $2 ~ /^(andn|bextr|bls|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|k[a-z]+[bwdq]$)/) {
      if (!(symbol in said)) print "  " symbol ": " $2
      said[symbol] = 1
    }')
  rm -f "$weak"
  if [ -n "$bad" ]; then
    echo "$object: shared functions with $isa instructions:"
    echo "$bad"
    found=1
  fi
done
exit $found
