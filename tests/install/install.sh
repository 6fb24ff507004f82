#!/usr/bin/env bash
# install.sh BUILD CMAKE GENERATOR CC SANITIZERS: installs BUILD to a place of its own, moves that (the package files hold no
# absolute path), builds tests/install/consumer against it in four ways, and the README's example.
set -euo pipefail
build=$1 cmake=$2 generator=$3 cc=$4 sanitizers=$5
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$cmake" --install "$build" --prefix "$tmp/first" >"$tmp/log" || { cat "$tmp/log"; exit 1; }
mv "$tmp/first" "$tmp/prefix"
prefix=$tmp/prefix
libdir=$(dirname "$(find "$prefix" -name gpurun.pc)")/..
version=$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --modversion gpurun)
expected="gpurun $version: bad model file is exit code 3"
export PKG_CONFIG_PATH=$libdir/pkgconfig
export LD_LIBRARY_PATH=$libdir

check() {
    found=$("$2") || { echo "$1: the program failed with $?"; exit 1; }
    [ "$found" = "$expected" ] || { echo "$1: expected '$expected', found '$found'"; exit 1; }
    echo "$1: $found"
}

flags=(-std=c11 -Wall -Wextra -Werror ${sanitizers:+-fsanitize=$sanitizers})
"$cc" "${flags[@]}" "$here/consumer/main.c" -o "$tmp/pc_shared" $(pkg-config --cflags --libs gpurun)
check "pkg-config, shared" "$tmp/pc_shared"
static_libs=$(pkg-config --static --libs gpurun)
"$cc" "${flags[@]}" "$here/consumer/main.c" -o "$tmp/pc_static" \
    $(pkg-config --cflags gpurun) ${static_libs/-lgpurun/-l:libgpurun.a}
check "pkg-config, static" "$tmp/pc_static"

"$cmake" -S "$here/consumer" -B "$tmp/consumer" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="${flags[*]}" \
    -DCMAKE_PREFIX_PATH="$prefix" -DGPURUN_VERSION="$version" >"$tmp/log" 2>&1 &&
    "$cmake" --build "$tmp/consumer" >>"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
check "find_package, shared" "$tmp/consumer/with_shared"
check "find_package, static" "$tmp/consumer/with_static"

# The README's example: the code between its #include and the next paragraph, run on the built-in model's file.
{
    echo '#include <gpurun.h>'
    echo 'int main(void) {'
    awk '/^    #include <gpurun.h>/ { on = 1; next } /^[^ ]/ { on = 0 } on' "$here/../../README.md"
    echo 'return rc ? rc : !logits; }'
} >"$tmp/example.c"
cp "$here/../../tools/default-model.gguf" "$tmp/model.gguf"
"$cc" "${flags[@]}" "$tmp/example.c" -o "$tmp/example" $(pkg-config --cflags --libs gpurun)
(cd "$tmp" && ./example) || { echo "the README's example fails"; exit 1; }

# The shared library exports the functions of gpurun.h, with those it includes, and nothing else; a sanitizer adds symbols of its own.
[ -z "$sanitizers" ] || exit 0
nm -D --defined-only "$libdir/libgpurun.so" | awk '{print $3}' | sort >"$tmp/exported"
sed -nE 's/^GR_API [^(]*\b(gr_[a-z0-9_]+)\(.*/\1/p' "$prefix/include/gpurun.h" "$prefix"/include/gr/*.h | sort >"$tmp/public"
[ -s "$tmp/public" ]
diff "$tmp/exported" "$tmp/public" || { echo "libgpurun.so exports the left, gpurun.h declares the right"; exit 1; }
[ "$(readlink -f "$libdir/libgpurun.so")" = "$(readlink -f "$libdir/libgpurun.so.$version")" ]
