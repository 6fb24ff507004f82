"""scripts/bench/sass: the hottest loop and what it counts of a listing, and that kernels/README.md shows the record and what
scripts/bench/step predicts from it.   sass.py SOURCE_DIR"""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys

root = sys.argv[1]
path = os.path.join(root, "scripts", "bench", "sass")
loader = importlib.machinery.SourceFileLoader("sass", path)
sass = importlib.util.module_from_spec(importlib.util.spec_from_loader("sass", loader))
loader.exec_module(sass)

# Two loads ahead of two products in a loop with a way around one load, and a wait out of line that leads back.
LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.NA.128.CONSTANT R8, desc[UR4][R2.64] ;
        /*0020*/               @P0 BRA 0x40 ;
        /*0030*/                   LDG.E.NA.128.CONSTANT R12, desc[UR4][R2.64+0x10] ;
        /*0040*/              @!P1 BRA 0xa0 ;
        /*0050*/                   HMMA.16816.F32 R16, R8, R20, RZ ;
        /*0060*/                   HMMA.16816.F32 R16, R12, R22, R16 ;
        /*0070*/               @P2 BRA 0x10 ;
        /*0080*/                   EXIT ;
        /*0090*/                   NOP ;
        /*00a0*/                   NANOSLEEP R0 ;
        /*00b0*/              @!P1 BRA 0xa0 ;
        /*00c0*/                   BRA 0x50 ;
"""
code = sass.instructions(LISTING.splitlines())
way = sass.hottest(code, lambda i: ".NA" in i.op)
assert [i.at for i in way] == [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70], [hex(i.at) for i in way]
assert 0x30 not in [i.at for i in sass.hottest(code, lambda i: False)], "of ways with as much to load the shortest"
assert sass.asked_for(way, lambda i: ".NA" in i.op) == 32
assert sass.asked_for(way, lambda i: False) == 0

# Scoreboards: each load on one of its own, for which one product waits; then both loads on one.
def in_flight(control):
    return sass.in_flight([i._replace(control=control.get(i.at, 7 << 5)) for i in way], lambda i: ".NA" in i.op)


apart = {0x10: 0 << 5, 0x30: 1 << 5, 0x50: 1 << 11 | 7 << 5, 0x60: 2 << 11 | 7 << 5}
assert in_flight(apart) == 8, in_flight(apart)
assert in_flight(apart | {0x30: 0 << 5}) == 0
(s2r,) = sass.instructions("""
        /*0060*/                   S2R R6, SR_TID.X ;                                                 /* 0x0000000000067919 */
                                                                                                      /* 0x000ea20000002100 */
""".splitlines())
assert (s2r.op, s2r.control >> 5 & 7, s2r.control >> 11) == ("S2R", 2, 0)
assert sass.per_multiprocessor(256, 128, 4096) == 2 and sass.per_multiprocessor(256, 80, 4096) == 3
assert sass.per_multiprocessor(384, 168, 120 << 10) == 1

with open(os.path.join(root, "kernels", "README.md"), encoding="utf-8") as f:
    readme = f.read()
for command, write in ([path, "--print"], "scripts/bench/sass --write"), ([os.path.join(root, "scripts", "bench", "step")], "scripts/bench/step --write"):
    section = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert section in readme, f"kernels/README.md lacks what {' '.join(command)} says: {write}"
