"""Exact row statistics while a model runs: `measure(model, batches) -> RowStatistics`. Keeps no square matrix."""
