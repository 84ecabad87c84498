"""Kernels in C++ for the CPU, built on the machine that runs them."""
