#!/usr/bin/env python3
"""Compiles kernels with Triton and CUTLASS for sm_90a, runs them by a library with the CUDA driver's
entry points, and compares their results with NumPy's in float64.

    run.py [OPTIONS] [LIBRARY]

Without a library kernels are compiled only, and their PTX goes through ptxas where there is one. Prints a
line a kernel: name, instructions of interest, worst error relative to its tolerance, seconds of the
compilation and of the run. Exit status 1 when a kernel fails. Each kernel has a process of its own."""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Instructions that a line counts, by the beginning of their spelling.
FAMILIES = ['wgmma.mma_async', 'mma.sync', 'cp.async.bulk.tensor', 'cp.reduce.async.bulk.tensor', 'cp.async.c',
            'mbarrier', 'ldmatrix', 'stmatrix', 'setmaxnreg', 'elect', 'tensormap', 'barrier.cluster', 'shfl',
            'redux', 'atom', 'red.', 'call', 'ld.local', 'griddepcontrol']
SIZES = {'8': 1, '16': 2, '32': 4, '64': 8}


class NoDevice:
    """Addresses for a compilation without a library: multiples of 256 that nobody reads."""

    def __init__(self):
        import ctypes
        kind = ctypes.CFUNCTYPE(ctypes.c_int)
        self.function = kind(lambda: 0)   # cuTensorMapEncodeTiled, which leaves the map as it is
        self.encode = ctypes.cast(self.function, ctypes.c_void_p).value
        self.addresses = {}

    def address(self, array):
        return self.addresses.setdefault(id(array), 0x7f0000000000 + 0x1000000 * len(self.addresses))


def entry_sizes(ptx, entry):
    """Bytes of each parameter that an entry declares."""
    head = re.search(r'\.entry\s+' + re.escape(entry) + r'\s*\((.*?)\)', ptx, re.S)[1]
    found = []
    for text in head.split(','):
        array = re.search(r'\[(\d+)\]', text)
        scalar = re.search(r'\.param\s+\.[busf](\d+)', text)
        if array or scalar:
            found.append(int(array[1]) if array else SIZES[scalar[1]])
    return found


def counts(ptx):
    from case import opcodes
    found = opcodes(ptx).items()
    totals = {f: sum(n for word, n in found if word.startswith(f)) for f in FAMILIES}
    return ' '.join(f'{f.rstrip(".")}:{n}' for f, n in totals.items() if n) or 'scalar'


def assemble(ptx):
    """Checks PTX with ptxas."""
    if shutil.which('ptxas'):
        with tempfile.NamedTemporaryFile('w', suffix='.ptx') as file:
            file.write(ptx)
            file.flush()
            subprocess.run(['ptxas', '-arch=sm_90a', '-o', '/dev/null', file.name], check=True)


def run_case(case, options):
    """Prints a case's line; returns whether it passed."""
    from driver import Device
    device = Device(options.library) if options.library else NoDevice()
    begin = time.monotonic()
    arguments, judge = case.inputs()
    launch = case.launch(arguments, device)
    if options.keep:
        (options.keep / f'{case.name}.ptx').write_text(launch.ptx)
    sizes = entry_sizes(launch.ptx, launch.entry)
    compiled = time.monotonic()
    line = f'{case.name:28s} {counts(launch.ptx)}'
    if not options.library:
        assemble(launch.ptx)
        print(f'{line}  compiled {compiled - begin:.1f} s', flush=True)
        return True
    device.launch(launch, sizes)
    changed = []
    for array in device.kept:
        bits = device.read(array)
        if array.out:
            array.bits[...] = bits
        elif bits.tobytes() != array.bits.tobytes():
            changed.append(array)
    ran = time.monotonic()
    error = judge()
    good = error <= 1 and not changed
    print(f'{line}  error {error:.3g}{" INPUT CHANGED" if changed else ""}  {compiled - begin:.1f} s '
          f'{ran - compiled:.1f} s  {"ok" if good else "FAILED"}', flush=True)
    return good


def in_process(case, options):
    """run_case in a child, which a crash or the time limit ends without ending the others."""
    child = os.fork()
    if child == 0:
        signal.alarm(options.seconds)
        status = 1
        try:
            status = 0 if run_case(case, options) else 1
        except Exception as problem:
            print(f'{case.name:28s} FAILED: {problem}', flush=True)
        os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        print(f'{case.name:28s} FAILED: {signal.Signals(os.WTERMSIG(status)).name}', flush=True)
    return status == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('library', nargs='?')
    parser.add_argument('--list', action='store_true', help='print names of kernels')
    parser.add_argument('--only', metavar='NAME', action='append', help='kernels whose names begin so')
    parser.add_argument('--keep', metavar='DIR', type=pathlib.Path, help='folder that receives the PTX')
    parser.add_argument('--cache', metavar='DIR', help='folder of compiled kernels, for later runs')
    parser.add_argument('--seconds', metavar='N', type=int, default=1800, help='time limit of a kernel')
    options = parser.parse_args()
    own = None if options.cache else tempfile.TemporaryDirectory()
    os.environ['TRITON_CACHE_DIR'] = options.cache or own.name
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    from kernels import CASES
    chosen = [c for c in CASES if not options.only or any(c.name.startswith(x) for x in options.only)]
    if options.list or not chosen:
        print('\n'.join(c.name for c in (chosen or CASES)))
        return 0 if options.list else 2
    failed = sum([not in_process(c, options) for c in chosen])
    print(f'{len(chosen) - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
