#!/bin/sh
# finds.sh CODEGATE BUDGET OBJECT: the gate must find each fault of faults.cu, and none in its sound kernels; its table
# says which architecture each value is of.
set -u
said=$("$@" 2>&1 >/dev/null)
status=$?
failed=0
[ $status -eq 1 ] || { echo "exit $status, expected 1"; failed=1; }
for arch in 80 90 100; do
  while read -r expected; do
    expected=$(echo "$expected" | sed "s/ARCH/sm_$arch/")
    echo "$said" | grep -Eq "^codegate: faults.cu $expected$" || { echo "not found: $expected"; failed=1; }
  done <<'END'
spills: ARCH spills [1-9][0-9]* bytes by stores and [1-9][0-9]* by loads; none are allowed
spills: ARCH has [1-9][0-9]* bytes of stack and [1-9][0-9]* accesses to local memory; none are allowed
local: ARCH has 256 bytes of stack and [1-9][0-9]* accesses to local memory; none are allowed
greedy: ARCH takes [1-9][0-9]* registers, 40 are allowed
crowded: ARCH has 8 warps resident, at least 16 are expected
narrow_accesses: ARCH has no 128-bit load from global memory
narrow_accesses: ARCH has no 128-bit store to global memory
unbounded: ARCH has no launch bounds
unlisted: not in the budget
gone: in the budget, but there is no such kernel
END
done
"$@" 2>/dev/null | sed -n 2p | grep -Eq '^( +sm_80/90/100){5} *$' ||
  { echo "the table names no architectures"; failed=1; }
if echo "$said" | grep sound; then failed=1; fi
[ $failed -eq 0 ] || echo "$said"
exit $failed
