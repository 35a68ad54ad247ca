#!/bin/sh
# What of tests/gpu/run can be tested without a GPU: the list of checks fits into 8 minutes; without a driver or a
# visible GPU, or with an unknown flag, one line says so; the script itself, over programs that only seem to work.
set -u
run=$(dirname "$0")/run
failed=0
fail() { echo "$*"; failed=1; }
list=$("$run" --dry-run) || fail "--dry-run fails"
total=$(echo "$list" | sed -n 's/^all *at most \([0-9]*\) s$/\1/p')
[ "${total:-999}" -le 480 ] || fail "the checks take up to ${total:-?} s, expected at most 480"
help=$("$run" --help) || fail "--help fails"
echo "$help" | grep -q "^usage: tests/gpu/run " || fail "--help says no usage: $help"

expect() {  # STATUS TEXT COMMAND...
  status=$1 text=$2
  shift 2
  said=$("$@" 2>&1)
  got=$?
  [ $got -eq "$status" ] || fail "exit $got, expected $status: $*"
  [ "$(echo "$said" | grep -c .)" -eq 1 ] || fail "expected one line, found: $said"
  echo "$said" | grep -q "$text" || fail "expected '$text', found: $said"
}
bare=$(mktemp -d)
fake=$(mktemp -d)
trap 'rm -r "$bare" "$fake"' EXIT
for program in bash dirname readlink; do ln -s "$(command -v $program)" "$bare/$program"; done
expect 4 "not run: no usable NVIDIA GPU: no nvidia-smi" env PATH="$bare" "$run"
expect 2 "usage" "$run" --all

program() {  # NAME; what it does comes from stdin. For bash: sh keeps no exported functions
  { echo '#!/usr/bin/env bash'; cat; } >"$fake/$1"
  chmod +x "$fake/$1"
}
program nvidia-smi <<'END'
echo "$*" >>"${0%/*}/asked"
echo "NVIDIA H200, 9.0, 580.0"
END
# The largest model runs past its time, at once; the next one is out of memory.
program timeout <<'END'
case $* in *"--model gpt2:d48 "*) exit 124 ;; esac
while [ "$1" != -k ]; do shift; done
shift 3
exec "$@"
END
program llmops <<'END'
case $* in
  *"--model gpt2:d36 "*) exit 4 ;;
  *"--steps 8 "*) echo '{"step":8,"loss":1,"flops_per_s":4e14}' ;;
esac
END
for name in test_cuda unit_train perf_cuda; do program $name </dev/null; done
with_fakes() { env PATH="$fake:$PATH" LLMOPS_BUILD_DIR="$fake" "$@"; }

expect 4 "not run: no usable NVIDIA GPU: CUDA_VISIBLE_DEVICES is empty" with_fakes CUDA_VISIBLE_DEVICES= "$run"
[ ! -e "$fake/asked" ] || fail "nvidia-smi was asked although no GPU is visible"
said=$(with_fakes CUDA_VISIBLE_DEVICES=3,1 "$run" --out "$fake/out" 2>&1)
grep -q "^-i 3 " "$fake/asked" || fail "the first visible GPU is 3, nvidia-smi was asked: $(cat "$fake/asked")"
echo "$said" | grep -q "train-largest: passed" || fail "train-largest did not step down: $said"
grep -q "^| train | gpt2:d24, .* | 400.0 TFLOP/s | 989.4 dense peak | 40 % |$" "$fake/out/results.md" ||
  fail "expected a row of gpt2:d24 in results.md: $(cat "$fake/out/results.md")"
exit $failed
