"""All cases: kernels of Triton and CUTLASS with inputs and judges, by name in CASES."""
import kernels_cutlass  # noqa: F401
import kernels_descriptor  # noqa: F401
import kernels_gluon  # noqa: F401
import kernels_matmul  # noqa: F401
import kernels_other  # noqa: F401
import kernels_rows  # noqa: F401
from case import CASES  # noqa: F401
