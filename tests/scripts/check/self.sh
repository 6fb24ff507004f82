#!/usr/bin/env bash
# self.sh CHECK: plants one violation after another in a small tree and expects scripts/check to report exactly that line.
set -euo pipefail
check=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
style=$(dirname "$check")/..
failures=0

# A tree that breaks no rule.
fresh() {
    rm -rf "$tmp/tree"
    mkdir -p "$tmp"/tree/{include/gr,host/{arch,base,graph,kv,model,models},cuda,kernels,tools/cli,tests/base,scripts,build}
    cd "$tmp/tree"
    cp "$style/.clang-format" "$style/.clang-tidy" .
    cp "$style/scripts/layers.txt" scripts/ # the rooms of this tree are some of the real one's
    printf '#ifndef GR_OK_H\n#define GR_OK_H\nint gr_ok(int x);\n#endif\n' | tee include/gr/ok.h |
        tee host/base/log.h host/base/file.h host/graph/build.h host/arch/arch.h host/kv/kv.h host/model/bind.h tools/own.h cuda/table.h kernels/ptx.h tests/base/own.h >/dev/null
    printf '#include "gr/ok.h"\n\nint gr_ok(int x)\n{\n    return x + 1;\n}\n' >host/base/alloc.c
    printf '#include "arch/arch.h"\n#include "graph/build.h"\n' >host/models/llama.c
    printf 'ARCH(llama)\nARCH(gpt2)\n' >host/models/models.def
    printf '#include "own.h"\n' >tools/main.c
    printf '# Two words, or 3\n[a](host/base/log.h), [b](#two-words-or-3), [c](https://example.org/none)\n' >README.md
    printf '#include "base/log.h"\n#include "gr/ok.h"\n#include "table.h"\n' >cuda/stream.c
    printf '#include "gr/ok.h"\n#include "ptx.h"\n' >kernels/norm.cu
    printf '#include "base/own.h"\n#include "cuda/table.h"\n' >tests/base/log.c
}

archive() {
    local f
    rm -f build/*
    for f in host/*/*.c; do
        cc -c -Iinclude -Ihost "$f" -o "build/$(basename "$f").o"
        printf '{"directory": "%s", "command": "cc -Iinclude -Ihost -c %s", "file": "%s"},\n' "$PWD" "$f" "$PWD/$f"
    done | sed '1s/^/[/; $s/,$/]/' >build/compile_commands.json
    ar rc build/libgpurun.a build/*.o
}

# expect RULE [FILE:LINE]: with it, that finding and no other; without, none.
expect() {
    local found rc=0
    case $1 in symbols | tidy) archive ;; esac
    found=$("$check" --all --root . --build build --only "$1" 2>&1) || rc=$?
    if [ -z "${2-}" ]; then
        [ $rc = 0 ] && [ -z "$found" ] && return
    else
        [ $rc = 1 ] && [[ $found == "$2: $1: "*$'\n'"check: 1 findings" ]] && return
    fi
    echo "$1: expected ${2:-nothing}, found (exit $rc): $found"
    failures=$((failures + 1))
}

# plant RULE FILE LINE TEXT: TEXT at the end of FILE gives a finding at LINE.
plant() {
    fresh
    mkdir -p "$(dirname "$2")"
    printf '%b' "$4" >>"$2"
    expect "$1" "$2:$3"
}

rules="includes headers length todo names links asm symbols"
command -v clang-format-14 >/dev/null && command -v clang-tidy-14 >/dev/null && command -v cppcheck >/dev/null &&
    rules="$rules format tidy cppcheck"
for rule in $rules; do
    fresh
    expect "$rule"
done

plant includes include/gr/ok.h 5 '#include "base/log.h"\n'
plant includes tools/main.c 2 '#include "gr/ok.h"\n'
plant includes tools/cli/say.c 1 '#include "tools/own.h"\n'
plant includes host/models/llama.c 3 '#include "kv/kv.h"\n'
plant includes host/kv/kv.c 1 '#include "cuda/table.h"\n'
plant includes host/graph/plan.c 2 '\n#include "kv/kv.h"\n'
plant includes host/base/file.c 1 '#include "graph/build.h"\n'
plant includes cuda/stream.c 4 '#include "arch/arch.h"\n'
plant includes kernels/norm.cu 3 '# include  "base/log.h"\n'
plant includes host/models/llama.c 3 '#include "model/bind.h"\n'
plant includes cuda/stream.c 4 '#include "base/file.h"\n\n#include "../host/base/log.h"\n'
plant includes host/kv/kv.c 1 '#include "base/own.h"\n'
plant includes host/kv/kv.c 1 '#include "../model/bind.h"\n'
plant includes host/kv/kv.c 2 '\n#include "kv/none.h"\n'
plant includes host/none/none.c 1 '\n#include "gr/ok.h"\n'
lines=$(wc -l <"$style/scripts/layers.txt")
plant includes scripts/layers.txt $((lines + 1)) 'host/low: host/high\nhost/high: host/low\n'
plant includes scripts/layers.txt $((lines + 2)) 'host/low:\nhost/high: ^host/low\n'
plant includes scripts/layers.txt $((lines + 1)) 'host/high host/base\n'
plant headers host/kv/kv.h 5 'size_t gr_size(void);\n'
plant length host/kv/kv.c 801 "$(yes '\n' | head -n 801 | tr -d '\n')"
plant length kernels/norm.cu 601 "$(yes '\n' | head -n 601 | tr -d '\n')"
plant todo host/kv/kv.c 2 '\n/* TO''DO */\n'
plant names host/graph/plan.c 2 '\nconst char *gr_f(void) { return "gpt2"; }\n'
plant links README.md 3 '[a](host/base/none.h)\n'
plant links host/README.md 2 '\n[a](../README.md#two-words)\n'
plant asm kernels/norm.cu 3 'asm volatile("bar.sync 0;");\n'
plant asm kernels/norm.cu 3 'asm("bar.sync 0;" ::: "memory");\n'
plant asm kernels/norm.cu 3 'asm("mov.u64 %%0, %%%%globaltimer;" : "=l"(now));\n'
plant asm kernels/norm.cu 4 '\nGR_SM90(asm volatile("{\\n.reg .pred p;\\n@p st.shared.u32 [%%0], %%1;\\n}"\n  ::"r"(bar), "r"(v)));\n'
plant asm kernels/norm.cu 4 'asm("add.u32 %%0, %%1, 1;" : "=r"(a) : "r"(b));\nasm volatile("add.u32 %%0, %%1, 1; wgmma.fence.sync.aligned;" : "=r"(a) : "r"(b));\n'
plant symbols host/kv/kv.c 1 'int kv_open(void) { return 0; }\n'
plant symbols host/kv/kv.c 3 '#include <stdlib.h>\nvoid gr_f(void);\nvoid gr_f(void) { exit(1); }\n'
plant symbols host/kv/kv.c 3 '#include <stdio.h>\nvoid gr_f(char *p, const char *f, int x);\nvoid gr_f(char *p, const char *f, int x) { sprintf(p, f, x); }\n'
plant symbols host/kv/kv.c 3 '#include <stdlib.h>\nvoid *gr_f(void);\nvoid *gr_f(void) { return malloc(3); }\n'
case $rules in
*tidy*)
    plant format host/kv/kv.c 1 'int gr_f( int x );\n'
    plant tidy host/kv/kv.c 1 'int gr_f(int x) { return x ? gr_f(x - 1) : 0; }\n'
    plant tidy host/kv/kv.c 1 'int gr_f(void) {}\n' # a warning of the compiler
    plant cppcheck host/kv/kv.c 1 'int gr_f(void) { int a[2] = {0}; return a[2]; }\n'
    ;;
*) echo "skipped: format, tidy, cppcheck (scripts/setup --dev installs them)" ;;
esac

# A wrong use is an error of its own, never "no findings".
fresh
for arguments in "--only nothing" "--frobnicate" "--base no-such-ref --only format"; do
    rc=0
    "$check" --root . $arguments >/dev/null 2>&1 || rc=$?
    [ $rc -gt 1 ] || { echo "$arguments: exit $rc"; failures=$((failures + 1)); }
done
[ $failures -eq 0 ] || { echo "$failures failed"; exit 1; }
