#!/usr/bin/env bash
# The base of the other tests here: mpirun and two-hosts run a command as that many ranks, on so many hosts, end it in time,
# pass its exit code on, cut the network and leave nothing behind.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

# expect NAME STATUS LINES COMMAND...: the sorted output, lines separated by "|".
expect() {
    local name=$1 status=$2 lines=$3 found rc=0
    shift 3
    found=$("$@" 2>"$tmp/log" | LC_ALL=C sort | paste -sd'|') || rc=$?
    if [ $rc = 77 ]; then echo "$name: $found"; [[ $name == mpirun* ]] && exit 77; return 0; fi
    [[ $rc == "$status" && $found == "$lines" ]] && return
    echo "$name: expected exit $status and '$lines', found exit $rc and '$found'"
    cat "$tmp/log"
    failures=1
}

expect "mpirun, 4 ranks" 0 "0 a b|1 a b|2 a b|3 a b" "$here/mpirun" 20 4 sh -c 'echo $OMPI_COMM_WORLD_RANK$PMI_RANK "$0"' "a b"
expect "mpirun, exit code" 6 "" "$here/mpirun" 20 2 sh -c 'exit 6'
# A busy mpirun does not end within the 2 s that it has then, and is killed.
limited() {
    local rc=0
    "$here/mpirun" "$@" || rc=$?
    [ $rc != 137 ] || rc=124
    return $rc
}
expect "mpirun, limit" 124 "" limited 1 2 sleep 30
expect "two hosts" 0 "0 host-a|1 host-a|2 host-b" "$here/two-hosts" 20 3 sh -c 'echo $OMPI_COMM_WORLD_RANK $(hostname)'
# Each side looks for the link before the network is cut, which is when both have looked, and after.
cat >"$tmp/look" <<'LOOK'
rank=$OMPI_COMM_WORLD_RANK
link() { ip link show veth0 | grep -o 'LOWER_UP'; }
echo "$rank before: $(link)"
touch "$1/looked$rank"
if [ "$rank" = 0 ]; then
    while [ ! -e "$1/looked1" ]; do sleep 0.02; done
    touch "$1/cut"
fi
while link >/dev/null; do sleep 0.02; done
echo "$rank after: $(link)"
LOOK
# mpirun itself may be stuck then: what the ranks say is in files.
"$here/two-hosts" --cut "$tmp/cut" 4 2 sh -c 'sh '"$tmp/look $tmp >$tmp/rank"'$OMPI_COMM_WORLD_RANK' >"$tmp/log" 2>&1 &
pid=$! rc=0
wait $pid || rc=$?
if [ $rc != 77 ]; then
    expect "network cut" 0 "0 after: |0 before: LOWER_UP|1 after: |1 before: LOWER_UP" cat "$tmp/rank0" "$tmp/rank1"
    ! ip netns list | grep "gr[ab]$pid" || { echo "these network namespaces are left behind" && failures=1; }
fi
exit $failures
