"""What only a GPU can show: `make gpu-check`, or `python -m tests.gpu.check`. Its figures are kept in `results/`."""
