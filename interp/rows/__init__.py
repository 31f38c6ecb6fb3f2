"""Exact row statistics of a whole corpus while a model runs: no square matrix kept, sums that add up, a file that survives a kill.

total = interp.rows.measure(model, ["one text", "another"], "full", save="rows.safetensors", resume=True)
total.first_weight(), total.sink_rate(0.3)      [layer, head]
total.overall(), total.heads(), total.queries() the figures of the analysis `sinks`
(a + b), total.save(path), RowStatistics.read(path)
"""

from interp.rows.measuring import measure
from interp.rows.statistics import RowStatistics

__all__ = ["RowStatistics", "measure"]
