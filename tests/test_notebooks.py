"""The notebooks run from top to bottom, and are kept without outputs and without a machine's own paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_clean(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not re.search(r"/(home|root|work|Users|tmp)/|[A-Z]:\\", cell.source)


def test_the_tour_runs_and_shows_what_it_promises(tmp_path: Path, smollm2: object) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(FOLDER / "tour.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    said = "".join(output.get("text", "") for output in outputs if output.output_type == "stream" and output.name == "stdout")
    shown = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert "first_weight 0.505" in said
    assert "in 0.595 of rows" in said
    assert (tmp_path / "a-first-report" / "index.html").is_file()
    assert sum("<svg" in html for html in shown) == 3  # two grids and a curve
    ids = [re.findall(r' id="([^"]+)"', html) for html in shown]
    assert sum(map(len, ids)) == len({name for page in ids for name in page})
    assert outputs[-1].data["text/plain"] == "True"
