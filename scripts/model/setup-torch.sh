#!/usr/bin/env bash
# Makes a Python environment that can train on a CPU, from PyPI alone: setup-torch.sh DIRECTORY
#
# PyPI's torch for Linux is the CUDA build and wants gigabytes of CUDA wheels that a CPU never
# calls. Two of them are small and really used while torch is imported; empty shared objects stand
# in for the others, and model.py binds lazily, so that a missing symbol matters only when called.
set -euo pipefail

venv=$(realpath -m "${1:?usage: setup-torch.sh DIRECTORY}")
here=$(dirname "$0")
python3 -m venv "$venv"
"$venv/bin/pip" install -q --no-deps -r "$here/requirements-torch.txt"
"$venv/bin/pip" install -q -r "$here/requirements.txt"

lib=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib
for name in cublas.so.12 cublasLt.so.12 cudnn.so.9 cufft.so.11 curand.so.10 cusolver.so.11 \
            cusparse.so.12 cusparseLt.so.0 nccl.so.2 nvrtc.so.12; do
    cc -shared -x c /dev/null -Wl,-soname,"lib$name" -o "$lib/lib$name"
done
cd "$here" && "$venv/bin/python" -c 'import model; print("torch", model.torch.__version__)'
