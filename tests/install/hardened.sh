#!/usr/bin/env bash
# hardened.sh FILE...: each is position-independent, resolves every symbol before it runs (full RELRO), has no executable
# stack, and calls the checked forms of libc functions and the stack protector.
set -euo pipefail
failures=0
for file in "$@"; do
    has() {
        readelf "$2" -W "$file" | grep -E "$3" >/dev/null && return
        echo "$file: $1"
        failures=1
    }
    has "not position-independent" -h '^ *Type: +DYN'
    has "no RELRO segment" -l '^ *GNU_RELRO '
    has "symbols are resolved lazily" -d 'BIND_NOW|NOW'
    has "executable stack" -l '^ *GNU_STACK .* RW '
    has "no fortified function" --dyn-syms '__[a-z]+_chk'
    has "no stack protector" --dyn-syms '__stack_chk_fail'
done
exit $failures
