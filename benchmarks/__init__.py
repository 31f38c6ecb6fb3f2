"""How much measuring costs: `python -m benchmarks` times each way of reading attention beside the plain forward on the same ids."""
