#!/bin/sh
# package.sh BUILD_DIR LLMOPS: the .deb that cpack makes holds what it should, where it should, and runs from a scratch root.
set -eu
build=$1
version=$("$2" --version)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "package: $*"; exit 1; }

cpack -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/cpack" >"$scratch/log" 2>&1 ||
  { cat "$scratch/log"; fail "cpack failed"; }
deb=$(ls "$scratch"/cpack/*.deb)
root=$scratch/root
dpkg-deb -x "$deb" "$root"

[ "$("$root/usr/bin/llmops" --version)" = "$version" ] || fail "the packaged binary is not '$version'"
for file in man/man1/llmops.1 man/man1/llmops-train.1 bash-completion/completions/llmops zsh/vendor-completions/_llmops \
            fish/vendor_completions.d/llmops.fish doc/llmops/README.md doc/llmops/copyright doc/llmops/CHANGELOG.md; do
  [ -s "$root/usr/share/$file" ] || fail "no /usr/share/$file"
done
bash -n "$root/usr/share/bash-completion/completions/llmops" || fail "bash does not read its completions"
extra=$(cd "$root" && find . -type f | grep -Ev '^./usr/(bin/llmops$|share/(man/man1/llmops|doc/llmops/|bash-completion/|zsh/|fish/))' || true)
[ -z "$extra" ] || fail "unexpected: $extra"

depends=$(dpkg-deb -f "$deb" Depends)
for library in libc6 libfmt libzstd1 zlib1g; do
  echo "$depends" | grep -q "$library" || fail "Depends lacks $library: $depends"
done
echo "$depends" | grep -Eqi 'cuda|nccl|cublas' && fail "Depends has a CUDA library: $depends"
[ "$(dpkg-deb -f "$deb" Recommends)" = bible-kjv ] || fail "Recommends is not bible-kjv"

# dpkg takes it: into an empty database, where none of its dependencies is known.
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$scratch/installed/var/lib/dpkg/updates" "$scratch/installed/var/lib/dpkg/info"
  : >"$scratch/installed/var/lib/dpkg/status"
  dpkg --root="$scratch/installed" --force-depends -i "$deb" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "dpkg -i failed"; }
  [ "$("$scratch/installed/usr/bin/llmops" --version)" = "$version" ] || fail "the installed binary is not '$version'"
fi
echo "$(basename "$deb"): $depends"
