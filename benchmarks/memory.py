"""Peak memory of one way above the loaded model, in a process of its own: `python -m benchmarks.memory WAY LENGTH` prints bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peak(name: str, length: int, device: str) -> int:
    """Resident (or CUDA) bytes at the peak of one run, above those with the model loaded and run once on a few tokens."""
    import torch

    import interp
    from benchmarks.ways import ids_of, way

    model = interp.load("smollm2", device=device)
    if device == "cuda":
        way(name, model, ids_of(8))()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        way(name, model, ids_of(length))()
        return torch.cuda.max_memory_allocated() - before
    way(name, model, ids_of(8))()
    run = way(name, model, ids_of(length))
    RESET.write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def measured(name: str, length: int, device: str) -> int | None:
    """`peak` in a process of its own; None where it died (of memory, mostly)."""
    if device == "cpu" and not RESET.exists():
        return None
    done = subprocess.run([sys.executable, "-m", "benchmarks.memory", name, str(length), device], capture_output=True, text=True)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
