"""scripts/bench/sass: the hottest loop and what it counts of a listing, and that kernels/README.md shows the record and what
scripts/bench/step predicts from it.   sass.py SOURCE_DIR"""
import importlib.machinery
import importlib.util
import json
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

# Pipes: integers take two cycles, upper halves of products four, f16x2 one, and a load of 16 bytes 16 of the unit that four share.
pipes = sass.pipes(sass.instructions("""
        /*0000*/                   LOP3.LUT R1, R2, 0xf, RZ, 0xc0, !PT ;
        /*0010*/                   PRMT R1, R2, 0x4140, R3 ;
        /*0020*/                   IMAD.SHL.U32 R4, R2, 0x8, RZ ;
        /*0030*/                   IMAD.HI.U32 R4, R2, R5, RZ ;
        /*0040*/                   HADD2.F32 R6, -RZ, R4.H0_H0 ;
        /*0050*/                   HMUL2 R6, R6, R4 ;
        /*0060*/                   FFMA R6, R6, R4, RZ ;
        /*0070*/                   LDS.128 R8, [R3] ;
        /*0080*/                   LDS.U16 R8, [R3] ;
        /*0090*/                   NOP ;
""".splitlines()))
assert pipes == {"issue": 9, "ALU": 4, "FMA": 9, "loads": 20}, pipes
assert sass.busiest(pipes) == ("loads", 20)
# A way that fills the ring is taken, though it is longer.
ring = sass.instructions(LISTING.replace("LDG.E.NA.128.CONSTANT R12, desc[UR4][R2.64+0x10]", "UBLKCP.S.G [UR16], [UR14], UR13").splitlines())
assert 0x30 in [i.at for i in sass.hottest(ring, lambda i: False)]

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

with open(os.path.join(root, "scripts", "bench", "results", "sass.json"), encoding="utf-8") as f:
    rows = {r["kernel"]: r["per_weight"] for r in json.load(f)["rows"] if "per_weight" in r}
for dtype in sass.BITS:  # 24 tokens take more instructions a weight than 8, and fewer than three times as many
    assert 1 < rows[f"gr_matmul_mv3_{dtype}"] / rows[f"gr_matmul_mv_{dtype}"] < 3, dtype
with open(os.path.join(root, "kernels", "README.md"), encoding="utf-8") as f:
    readme = f.read()
for command, write in ([path, "--print"], "scripts/bench/sass --write"), ([os.path.join(root, "scripts", "bench", "step")], "scripts/bench/step --write"):
    section = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert section in readme, f"kernels/README.md lacks what {' '.join(command)} says: {write}"
