#!/bin/sh
# What gpurun fit says of the emulated device: where layers go, and the command line that it advises, which is run; with
# --deterministic as well.   fit.sh PROGRAM
set -u
bad=0
program=$1
expect() { # what, text; in $out
  case $out in *"$2"*) ;; *) echo "$1: '$2' expected: $out"; bad=1 ;; esac
}
layers() { # device: the column of its layers
  echo "$out" | awk -v device="$1" '$1 == device { sub(/^[A-Z0-9]+ +/, ""); sub(/Emulated device, [a-z0-9_]+ +/, ""); print $1 }'
}
fit() { # layers on the CPU and on the device, flags..
  cpu=$1 gpu=$2
  shift 2
  out=$("$program" fit -c 64 "$@" 2>/dev/null) || { echo "$*: it fails"; bad=1; }
  [ "$(layers CPU)" = "$cpu" ] && [ "$(layers EMU0)" = "$gpu" ] || { echo "$*: layers $cpu on the CPU and $gpu on EMU0 expected: $out"; bad=1; }
}
advised() { # runs the command line of the last line of $out, and says what went where
  words=$(echo "$out" | tail -n 1)
  case $words in "gpurun run "*) ;; *) echo "no command line: $out"; bad=1; return ;; esac
  out=$(eval "\"\$program\" ${words#gpurun} -p Once -n 2 --temp 0 --dump-plan" 2>&1 >/dev/null) || { echo "$words: it fails: $out"; bad=1; }
}

fit none 0-3
advised
expect 'all layers' 'segment 0 on EMU0'
fit none 0-3 --deterministic
expect '--deterministic' ' --deterministic'
advised
expect '--deterministic' 'segment 0 on EMU0'
expect '--deterministic' 'one token at a time'
exit $bad
