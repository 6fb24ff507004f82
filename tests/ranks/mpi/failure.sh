#!/usr/bin/env bash
# failure.sh GPURUN: ranks that should not have been started together, that lack what they need, that are told to end or are
# stuck: all of them end, soon, with the right code, and it is said once what was wrong.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
gpurun=$1
tmp=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$tmp"' EXIT
command -v mpirun >/dev/null || { echo "skipped: mpirun is not installed"; exit 77; }

# new: a folder $dir for the next case, whose ranks are "$(rank) ARGS..."; four cases run at once.
new() {
    while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n || true; done
    dir=$tmp/$((k = ${k-0} + 1))
    mkdir "$dir"
}
rank() { echo "$here/rank $dir 1 $gpurun"; }

# until_true SECONDS CONDITION: whether it holds in time.
until_true() {
    local i
    for ((i = 0; i < $1 * 50; i++)); do
        eval "$2" && return 0
        sleep 0.02
    done
    return 1
}
ended() { [ "$(ls "$dir" | grep -c '^end\.[0-9]$')" = "$n" ]; }

wrong() {
    echo "$name: $1; codes $codes"
    (cd "$dir" && grep . err.*) || true
    touch "$tmp/failed"
}

# expect NAME CODES RANK WORDS DO N ARGS...: of N ranks that mpirun starts with ARGS, to which DO is done meanwhile, rank 0 says
# the words (an extended regular expression) and RANK says something too ("-": nobody else does); only rank 0 writes.
expect() {
    name=$1 want=$2 speaker=$3 words=$4 to_do=$5 n=$6
    shift 6
    "$here/mpirun" 60 "$@" >"$dir/launcher" 2>&1 &
    local launcher=$! r
    eval "$to_do"
    until_true 30 ended || true
    touch "$dir/all"
    wait "$launcher" || true
    codes=$(for ((r = 0; r < n; r++)); do cut -d' ' -f1 "$dir/end.$r" 2>/dev/null || echo -; done | paste -sd' ')
    [ "$codes" = "$want" ] || wrong "codes $want expected"
    [ -z "$words" ] || grep -Eq "$words" "$dir/err.0" || wrong "'$words' expected of rank 0"
    for ((r = 1; r < n; r++)); do
        [ ! -s "$dir/out.$r" ] || wrong "rank $r wrote to its standard output"
        if [ "$speaker" = "$r" ]; then
            grep -q "^gpurun: rank $r (.*): error: " "$dir/err.$r" || wrong "rank $r should say what is wrong"
        elif [ "$speaker" = - ]; then
            [ ! -s "$dir/err.$r" ] || wrong "rank $r should say nothing"
        fi
    done
    touch "$dir/expected"
}
# right: that rank 0 wrote what one process writes.
right() { cmp -s "$tmp/right" "$dir/out.0" || wrong "another text"; }
# has_text, then signal NAME RANK...
has_text() { until_true 30 '[ -s "$dir/out.0" ]' || wrong "no text"; }
signal() {
    local r name=$1
    shift
    for r; do kill "-$name" "$(cat "$dir/pid.$r")" 2>/dev/null || true; done
}

prompt="-p once -n 8 -c 256 --seed 1 -t 1"
long="-p once -n 100000 -c 256 --context-shift --ignore-eos --seed 1 -t 1"
other=$tmp/other.gguf none=$tmp/none.gguf
codes=
"$gpurun" quantize "$here/../../../tools/default-model.gguf" "$other" q8_0 2>/dev/null
"$gpurun" run $prompt >"$tmp/right" 2>/dev/null
mkfifo "$tmp/once" "$tmp/silent"

# Rank 0 stuck in a call that does not come back, reading what nobody writes, takes longest.
new; {
    sleep 60 >"$tmp/silent" &
    writer=$!
    expect "a rank that is stuck" "4 137 4" 2 "error: rank 1 \(.*its process has ended.*no way out within 4 s" \
        'until_true 30 "[ -s $dir/err.0 ]"; sleep 1; signal KILL 1' 3 3 $(rank) run -f "$tmp/silent" -c 256
    kill $writer
} &
new; { expect "all well" "0 0 0" - "" "" 3 3 $(rank) run $prompt && right; } &
new; expect "another model on rank 2" "2 2 2" - "error: rank 2 \(.*model: " "" \
    3 2 $(rank) run $prompt : -n 1 $(rank) run -m "$other" $prompt &
new; expect "other parameters" "2 2 2" - "error: rank 1 \(.*layers on GPUs: " "" \
    3 1 $(rank) run $prompt : -n 2 $(rank) run $prompt -ngl 3 &
new; {
    expect "no model on rank 1" "3 3 3" 1 "error: rank 1 \(.*has left, with exit code 3" "" \
        3 1 $(rank) run $prompt : -n 1 $(rank) run -m "$none" $prompt : -n 1 $(rank) run $prompt
    grep -q "none.gguf" "$dir/err.1" || wrong "the file should be named"
} &
new; expect "no model on rank 0" "3 3 3" - "error: .*none.gguf" "" \
    3 1 $(rank) run -m "$none" $prompt : -n 2 $(rank) run $prompt &
new; expect "no model anywhere" "3 3 3" - "error: .*none.gguf" "" 3 3 $(rank) run -m "$none" $prompt &
new; expect "a wrong flag" "2 2" - "did you mean --temp" "" 2 2 $(rank) run --tmep 1 &
new; expect "a wrong flag on rank 1" "2 2" 1 "error: rank 1 \(.*has left, with exit code 2" "" \
    2 1 $(rank) run $prompt : -n 1 $(rank) run --tmep 1 &
new; expect "another command on rank 1" "4 4" - "error: rank 1 \(.*has left, with exit code 0" "" \
    2 1 $(rank) run $prompt : -n 1 $(rank) version &
new; expect "no prompt" "6 6" - "error: .*none.txt" "" 2 2 $(rank) run -f "$tmp/none.txt" &
new; expect "a prompt that is too long" "1 1 1" - "prompt is too long" "" 3 3 $(rank) run -f "$here/failure.sh" -c 256 &
new; {
    expect "a command for rank 0 alone" "0 0 0" - "" "" 3 3 $(rank) tokenize -p once
    [ -s "$dir/out.0" ] || wrong "no tokens"
} &
new; {
    echo once >"$tmp/once" &
    expect "what only one can read" "0 0" - "" "" 2 2 $(rank) run -f "$tmp/once" -n 8 -c 256 --seed 1 -t 1
    right
} &
# Signals while a long text is written: to all, as mpirun does, then to one.
new; expect "the end for all" "130 130 130" - " \| gen " 'has_text; signal TERM 0 1 2' 3 3 $(rank) run $long &
new; expect "an interrupt for all" "130 130 130" - " \| gen " 'has_text; signal INT 0 1 2' 3 3 $(rank) run $long &
new; expect "the end for rank 1" "4 143 4" 2 "error: rank 1 \(.*its process has ended" 'has_text; signal TERM 1' \
    3 3 $(rank) run $long &
wait
# Nobody reads any more what rank 0 writes: all end in good order.
piped=$("$here/mpirun" 30 2 bash -c 'set -o pipefail; "$0" -p once -n 200 -q | head -c 4 >/dev/null' "$gpurun" 2>&1) && [ -z "$piped" ] ||
    { echo "a reader that has had enough: $piped" && touch "$tmp/failed"; }
[ ! -e "$tmp/failed" ] && [ "$(ls "$tmp"/*/expected | wc -l)" = "$k" ]
