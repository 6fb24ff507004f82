#!/bin/sh
# Texts side by side on the emulated device, which draws their tokens and shares their beginnings, are those of a run each.
# parallel.sh PROGRAM
set -u
program=$1
begin='Once upon a time, a little fox named Max lived near the garden. He'
export GR_EMU_DEVICE=quiet
run() {
    "$program" -q --no-warmup -ngl 99 -n 6 --temp 0.8 "$@" || echo "$*: exit code $?"
}
alone=$(
    run -s 5 -p "$begin liked to"; echo
    run -s 6 -p 'The queen'; echo
    run -s 7 -p "$begin was very"; echo
)
together=$(run -s 5 -np 2 -p "$begin liked to" -p 'The queen' -p "$begin was very" | grep -v '^=== ')
[ "$alone" = "$together" ] && exit
echo "alone '$alone', side by side '$together'"
exit 1
