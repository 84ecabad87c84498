"""Kernels for GPUs, in Triton, and what runs a step on them. Imported only where they are to run.

They run on the CPU too, in Triton's interpreter, when `TRITON_INTERPRET=1` is set before this is imported: that is how
they are tested without a GPU.
"""
