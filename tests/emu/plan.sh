#!/bin/sh
# What --dump-plan prints of layers on the CPU and on the emulated device: segments, copies between them, weights that are brought
# there for a prompt.   plan.sh PROGRAM
set -u
bad=0
expect() { # text, flags..
    text=$1
    shift
    out=$("$program" -q -p 'Once upon a time' -n 2 --temp 0 --dump-plan "$@" 2>&1 >/dev/null)
    case $out in *"$text"*) ;; *) echo "$*: '$text' expected: $out"; bad=1 ;; esac
}
program=$1
expect 'segment 0 on EMU0' -ngl 99
expect 'segment 0 on CPU' -ngl 3 --no-op-offload
expect 'segment 1 on EMU0
     move ' -ngl 3 --no-op-offload
expect '     offload weight=f16[' -ngl 1 --op-offload-min 4
expect 'stage 0 of 2, out ' -ngl 99 --ranks 2 -dev EMU0,EMU0
[ "$bad" = 0 ] && case $out in *EMU0*) ;; *) echo "no device of rank 0: $out"; bad=1 ;; esac
exit $bad
