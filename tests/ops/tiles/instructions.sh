#!/bin/sh
# instructions.sh OBJECT: the object holds every tile instruction that its source is written with. Skipped (77) where
# there is no objdump that knows them, which five bytes show.
probe=$(mktemp) || exit 1
printf '\304\342\170\111\300' >"$probe"
objdump -D -b binary -m i386:x86-64 "$probe" 2>/dev/null | grep -q tilerelease || missing=1
rm -f "$probe"
[ -z "$missing" ] || exit 77
code=$(objdump -d --no-show-raw-insn "$1") || exit 1
for name in ldtilecfg tilerelease tilezero tileloadd tilestored tdpbssd tdpbf16ps; do
    case $code in
    *"$name"*) ;;
    *) echo "$1: no $name" >&2; exit 1 ;;
    esac
done
