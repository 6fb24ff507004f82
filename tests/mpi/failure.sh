#!/usr/bin/env bash
# failure.sh GPURUN: ranks that should not have been started together, that lack what they need, or that are told to end: all of
# them end, soon, with the right code, and it is said once what was wrong.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
gpurun=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0 sleeper=
command -v mpirun >/dev/null || { echo "skipped: mpirun is not installed"; exit 77; }

# start N ARGS...: what mpirun is to run as ranks 0 to N - 1, in the background; their words, codes and ends are in $dir.
start() {
    dir=$tmp/ranks n=$1
    shift
    rm -rf "$dir" && mkdir "$dir"
    "$here/mpirun" 60 "$@" >"$dir/launcher" 2>&1 &
    launcher=$!
}
rank() { echo "$here/rank $tmp/ranks 1 $gpurun"; }

# until SECONDS CONDITION: whether it holds in time.
until_true() {
    local k
    for ((k = 0; k < $1 * 50; k++)); do
        eval "$2" && return 0
        sleep 0.02
    done
    return 1
}
ended() { [ "$(ls "$dir" | grep -c '^end\.[0-9]$')" = "$n" ]; }

# finish: waits for all ranks. Sets codes ("0 0 0"), and $seconds between the first end and the last.
finish() {
    until_true 20 ended || true
    touch "$dir/all"
    wait "$launcher" || true
    codes=$(for ((r = 0; r < n; r++)); do cut -d' ' -f1 "$dir/end.$r" 2>/dev/null || echo -; done | paste -sd' ')
}

wrong() {
    echo "$name: $1; codes $codes"
    grep -H . "$dir"/err.* || true
    failures=1
}

# expect NAME CODES RANK WORDS: rank 0 says the words (an extended regular expression), and the rank named does too unless it is
# "-"; no other rank says anything, nobody but rank 0 writes anything.
expect() {
    name=$1 r=
    finish
    [ "$codes" = "$2" ] || wrong "codes $2 expected"
    [ -z "$4" ] || grep -Eq "error: .*$4" "$dir/err.0" || wrong "'$4' expected of rank 0"
    for ((r = 1; r < n; r++)); do
        [ ! -s "$dir/out.$r" ] || wrong "rank $r wrote to its standard output"
        if [ "$3" = "$r" ]; then
            grep -q "^gpurun: rank $r (.*): error: " "$dir/err.$r" || wrong "rank $r should say what is wrong"
        elif [ "$3" = - ]; then
            [ ! -s "$dir/err.$r" ] || wrong "rank $r should say nothing"
        fi
    done
}

prompt="-p once -n 8 -c 256 --seed 1 -t 1"
"$gpurun" quantize "$here/../../tools/default-model.gguf" "$tmp/other.gguf" q8_0 2>/dev/null
"$gpurun" run $prompt >"$tmp/right" 2>/dev/null

start 3 3 $(rank) run $prompt
expect "all well" "0 0 0" - ""
cmp "$tmp/right" "$dir/out.0" || { echo "all well: another text"; failures=1; }
for n in 1 2; do # the output is a terminal's as far as the rank can see
    "$here/mpirun" 30 $n "$gpurun" run $prompt 2>/dev/null | cmp "$tmp/right" - || { echo "$n ranks: another text"; failures=1; }
done

start 3 2 $(rank) run $prompt : -n 1 $(rank) run -m "$tmp/other.gguf" $prompt
expect "another model on rank 2" "2 2 2" - "rank 2 \(.*model: "
start 3 1 $(rank) run $prompt : -n 2 $(rank) run $prompt -ngl 3
expect "other parameters" "2 2 2" - "rank 1 \(.*layers on GPUs: "
start 3 1 $(rank) run $prompt : -n 1 $(rank) run -m "$tmp/none.gguf" $prompt : -n 1 $(rank) run $prompt
expect "no model on rank 1" "3 3 3" 1 "rank 1 \(.*has left, with exit code 3"
grep -q "none.gguf" "$dir/err.1" || wrong "the file should be named"
start 3 1 $(rank) run -m "$tmp/none.gguf" $prompt : -n 2 $(rank) run $prompt
expect "no model on rank 0" "3 3 3" - "none.gguf"
start 3 3 $(rank) run -m "$tmp/none.gguf" $prompt
expect "no model anywhere" "3 3 3" - "none.gguf"
start 2 2 $(rank) run --tmep 1
expect "a wrong flag" "2 2" - "did you mean --temp"
start 2 1 $(rank) run $prompt : -n 1 $(rank) run --tmep 1
expect "a wrong flag on rank 1" "2 2" 1 "rank 1 \(.*has left, with exit code 2"
start 2 1 $(rank) run $prompt : -n 1 $(rank) version
expect "another command on rank 1" "4 4" - "rank 1 \(.*has left, with exit code 0"
start 2 2 $(rank) run -f "$tmp/none.txt"
expect "no prompt" "6 6" - "none.txt"
start 3 3 $(rank) run -f "$here/failure.sh" -c 256
expect "a prompt that is too long" "1 1 1" - "prompt is too long"
start 3 3 $(rank) tokenize -p once
expect "a command for rank 0 alone" "0 0 0" - ""
[ -s "$dir/out.0" ] || wrong "no tokens"
mkfifo "$tmp/fifo" && echo once >"$tmp/fifo" &
start 2 2 $(rank) run -f "$tmp/fifo" -n 8 -c 256 --seed 1 -t 1
expect "what only one can read" "0 0" - ""
cmp "$tmp/right" "$dir/out.0" || { echo "fifo: another text"; failures=1; }

# Signals while a long text is written: to all of them, as mpirun does, then to one.
long="-p once -n 100000 -c 256 --context-shift --ignore-eos --seed 1 -t 1"
signal_all() {
    start 3 3 $(rank) run $long
    until_true 20 '[ -s "$dir/out.0" ]' || wrong "no text"
    for r in $2; do kill "-$1" "$(cat "$dir/pid.$r")"; done
}
# Rank 0 is stuck in a call that does not come back: reading what nobody writes.
mkfifo "$tmp/silent" && sleep 30 >"$tmp/silent" &
sleeper=$!
start 3 3 $(rank) run -f "$tmp/silent" -c 256
until_true 20 '[ -s "$dir/err.0" ]' || true
sleep 1
kill -KILL "$(cat "$dir/pid.1")"
expect "a rank that is stuck" "4 137 4" 2 "rank 1 \(.*its process has ended.*no way out within 4 s"
kill $sleeper

signal_all TERM "0 1 2"
expect "the end for all" "130 130 130" - ""
grep -q " | gen " "$dir/err.0" || wrong "rank 0 should end in good order"
signal_all INT "0 1 2"
expect "an interrupt for all" "130 130 130" - ""
grep -q " | gen " "$dir/err.0" || wrong "rank 0 should end in good order"
signal_all TERM 1
expect "the end for rank 1" "4 143 4" 2 "rank 1 \(.*its process has ended"
exit $failures
