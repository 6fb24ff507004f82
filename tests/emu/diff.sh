#!/bin/sh
# gpurun diff on the emulated device: against the CPU and without this and that both sides agree, by prompts of few tokens and
# of many; other angles are found.   diff.sh PROGRAM
set -u
few='Once upon a time'
many="$few there was a little girl who lived in a house with her mother and a big dog. One day she went to the park and saw a
red ball. She wanted to play with it, but it was not hers. So she asked the boy who sat under the old tree if it was his."
bad=0
expect() { # exit code, text, words..
    code=$1 text=$2
    shift 2
    out=$("$@" -q 2>&1)
    got=$?
    case $out in *"$text"*) ;; *) got="no '$text'" ;; esac
    [ "$got" = "$code" ] || { echo "$*: expected $code, found $got: $out"; bad=1; }
}
for prompt in "$few" "$many"; do
    expect 0 'as far as rounding lets them' "$1" diff -p "$prompt" -a '-ngl 0 --cpu-level ref' -b '-ngl 99'
    expect 0 'EMU0 2 layers' "$1" diff -p "$prompt" -a '-ngl 0' -b '-ngl 2'
    expect 0 'no node differs' "$1" diff -p "$prompt" -b '--no-cuda-pdl --no-cuda-graph --cuda-check'
    expect 0 'the two sides agree' "$1" diff -p "$prompt" -b '--no-cuda-fuse --no-cuda-sm90'
    expect 7 'tolerance: q of layer 0, as a whole' "$1" diff -p "$prompt" -b '--rope-freq-base 10100'
done
expect 0 'nothing is beyond its tolerance' "$1" diff -p "$few" -a '-dev none' -ctk q8_0 -ctv q4_0
expect 7 'as a whole, row' "$1" diff -p "$few" -a '-dev none' -ctk f32 -ctv f32 --tolerance 1e-6
expect 7 'tolerance: q of layer 0' env GR_EMU_DEVICE=quiet,plant=wrong:gr_norm "$1" diff -p "$few" -a '-ngl 0' -b '-ngl 99'
exit $bad
