#!/usr/bin/env bash
# setup.sh SETUP: scripts/setup on machines that are made up of a folder of programs: nothing missing, root, neither root nor
# sudo, no apt-get, an apt-get that fails.
set -euo pipefail
setup=$1
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
failures=0

program() { printf '#!/bin/bash\n%s\n' "$2" >"$bin/$1" && chmod +x "$bin/$1"; }

# A machine where cmake and jansson are all that is there, and what it takes to run a script.
machine() {
    rm -f "$bin"/*
    local p
    for p in bash cat env mktemp rm tail; do ln -s "$(command -v $p)" "$bin/$p"; done
    program cmake ''
    program pkg-config '[ "$2" = jansson ]'
    program id "echo $1"
    [ -z "${2-}" ] || program apt-get "$2"
}

# expect NAME STATUS PATTERN: what the script says and how it ends.
expect() {
    local found rc=0
    found=$(PATH=$bin "$bin/bash" "$setup" 2>&1 </dev/null) || rc=$?
    [[ $rc == "$2" && $found == $3 ]] && return
    printf '%s: expected exit %s and %q, found exit %s and:\n%s\n' "$1" "$2" "$3" "$rc" "$found"
    failures=1
}

missing="gcc g++ libc6-dev ninja-build libpcre2-dev libutf8proc-dev libxxhash-dev libcurl4-openssl-dev nettle-dev libedit-dev libmicrohttpd-dev libcriterion-dev openmpi-bin libopenmpi-dev iproute2 python3 openssl"

machine 0 'echo "$*" >>'"$bin/calls"
expect "as root" 0 "gpurun: installing $missing"
[[ $(<"$bin/calls") == *" update"$'\n'*" install -y --no-install-recommends $missing" ]] || {
    echo "as root: apt-get was called so:" && cat "$bin/calls" && failures=1
}
machine 0 'echo "E: no such package"; exit 100'
expect "apt-get fails" 1 $'gpurun: installing *\nE: no such package\ngpurun: apt-get could not install *'
machine 1000 'exit 1'
expect "neither root nor sudo" 1 "*as root*apt-get update && apt-get install -y --no-install-recommends $missing"
machine 1000 'exit 1'
program sudo '[ "$*" = "-n true" ] || echo "$*" >>'"$bin/calls"
expect "sudo without a password" 0 "gpurun: installing $missing"
[[ $(<"$bin/calls") == *"apt-get "*" update"$'\n'*"install -y"* ]] || { echo "sudo: not called" && failures=1; }
machine 1000
expect "no apt-get" 1 "*what Debian calls: $missing"$'\n*'
machine 1000
for p in cc c++ ninja pkg-config mpirun mpicc ip python3 openssl; do program $p ''; done
expect "nothing missing" 0 ""
exit $failures
