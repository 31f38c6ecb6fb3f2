"""The learner's notebook, run from top to bottom as it is kept: from the two-entry table to a real head. Its cells assert what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "attention_by_hand.ipynb"


def test_it_walks_from_the_table_to_a_real_head(tmp_path: Path, smollm2: object) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    said = "".join(str(output.get("data", {}).get("text/plain", "")) for cell in book.cells for output in cell.get("outputs", []))
    assert "0.8808" in said
    assert "0.787" in said
    assert "of smollm2 scores all 196 pairs and the mask throws 91 away" in said
    assert not [output for cell in book.cells for output in cell.get("outputs", []) if output.output_type == "error"]
