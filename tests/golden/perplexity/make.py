"""Writes base.bin and base.txt: what llama.cpp's llama-perplexity says of the built-in model.

    python3 make.py GPURUN LLAMA_PERPLEXITY

Recorded with llama.cpp as in llama-cpp-python 0.3.36, on the CPU: base.bin is what --kl-divergence-base writes with positions
times 0.85, base.txt what --kl-divergence then prints with positions as they are. The model, K and V are in F32 and flash
attention is off, so that little but the order of sums is left to differ. tests/tools/perplexity.py compares."""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
TEXT = HERE.parent / "default-model/perplexity.txt"


def main():
    gpurun, peer = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        model = folder + "/model.gguf"
        subprocess.run([gpurun, "quantize", HERE.parents[2] / "tools/default-model.gguf", model, "F32", "-q"], check=True)
        words = [peer, "-m", model, "-c", "16", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-ngl", "0",
                 "--kl-divergence-base", HERE / "base.bin"]
        subprocess.run(words + ["-f", TEXT, "--chunks", "15", "--rope-freq-scale", "0.85"], check=True)
        said = subprocess.run(words + ["--kl-divergence"], check=True, capture_output=True, text=True).stdout
    (HERE / "base.txt").write_text(said[said.index("chunk  "):].strip() + "\n")


main()
