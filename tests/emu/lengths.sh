#!/bin/sh
# Remedies that gpurun run offers for a prompt that does not fit, by the memory of the emulated device: they run, and those
# without memory are not offered.   lengths.sh PROGRAM
set -u
GR_EMU_DEVICE=quiet,memory=8388608
export GR_EMU_DEVICE
long=$(printf 'once upon a time there was %.0s' $(seq 400))
whole='
-c 2806 -gan auto takes it whole; --context-shift its newest part'
bad=0
expect() { # text, flags..
    text=$1
    shift
    out=$("$program" -n 1 -ub 32 -c 256 "$@" 2>&1)
    case $out in *"$text"*) ;; *) echo "$*: '$text' expected: $out"; bad=1 ;; esac
}
program=$1
expect '
--context-shift takes its newest part' -ngl 99 -p "$long"
expect 'not enough memory on EMU0' -ngl 99 -p a -c 2806 -gan auto
expect "$whole" -ngl 99 -nkvo -p "$long"
expect '4/4 layers on GPU' -ngl 99 -nkvo -p a -c 2806 -gan auto
expect "$whole" -p "$long"
case $out in *'-ngl auto:'*) echo "what is only tried is not said: $out"; bad=1 ;; esac
# However fast the CPU is, which decides from how many tokens on its layers are offloaded: with memory for that no layer fits.
expect '3/4 layers on GPU' -p a -c 2806 -gan auto
expect '3/4 layers on GPU' -p a -c 2806 -gan auto --op-offload-min 17
expect '3/4 layers on GPU' -p a -c 2806 -gan auto --cpu-level ref
exit $bad
