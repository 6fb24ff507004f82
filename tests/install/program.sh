#!/usr/bin/env bash
# program.sh SOURCE CMAKE NINJA CC: in a build folder where nothing was built, installing is refused in one line that says what to
# do; and of the files of a build folder that are installed, each is one that the target gpurun_program makes.
set -euo pipefail
source=$1 cmake=$2 ninja=$3 cc=$4
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
build=$tmp/build

"$cmake" -S "$source" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" -DCMAKE_C_COMPILER="$cc" -DGPURUN_CUDA=OFF \
    -DGPURUN_TESTS=OFF >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
if "$cmake" --install "$build" --prefix "$tmp/prefix" >"$tmp/log" 2>&1; then
    echo "nothing is built, and yet installed"
    exit 1
fi
tr -s ' \n' ' ' <"$tmp/log" | grep -F "is not built yet: cmake --build $build comes first" || { cat "$tmp/log"; exit 1; }

"$ninja" -C "$build" -t inputs gpurun_program | sort >"$tmp/made"
sed -nE "s|.*\"$build/([^\"/$]+)\".*|\1|p" "$build/cmake_install.cmake" | sort -u >"$tmp/installed"
grep -qx gpurun "$tmp/installed"
missing=
while read -r file; do
    case $file in
    gpurun | libgpurun.so.[0-9]) ;; # the program itself, and a link that is made with libgpurun.so
    *) [ -e "$build/$file" ] || grep -qxF "$file" "$tmp/made" || missing+=" $file" ;;
    esac
done <"$tmp/installed"
[ -z "$missing" ] || { echo "the target gpurun_program does not make what is installed:$missing"; exit 1; }
