"""A report as a folder: same bytes, nothing half-written, an index of all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import STANDING, TOKENS, Page, sample, short

from interp.errors import InterpError
from interp.report import folder, from_csv
from interp.report.text import whole


def test_written_files(tmp_path: Path) -> None:
    report = sample()
    index = report.write(tmp_path / "r")
    assert index == tmp_path / "r" / "index.html"
    assert sorted(os.listdir(tmp_path)) == ["r"]
    assert sorted(os.listdir(tmp_path / "r")) == [
        "by_position.csv",
        "claims.csv",
        "index.html",
        "pattern.csv",
        "summary.json",
        "tokens.csv",
    ]
    written = [whole(token) for token in TOKENS]
    assert from_csv(tmp_path / "r" / "tokens.csv")[STANDING].tolist() == written
    pattern = from_csv(tmp_path / "r" / "pattern.csv")
    assert pattern["key"].tolist() == written * len(TOKENS)  # repeated tokens keep their own column
    assert pattern["key_position"].tolist() == [*range(len(TOKENS))] * len(TOKENS)
    assert len(from_csv(tmp_path / "r" / "pattern.csv")) == len(TOKENS) ** 2
    source = (tmp_path / "r" / "summary.json").read_text(encoding="utf-8")
    summary = json.loads(source, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert sorted(summary) == list(summary) == ["analysis", "answer", "model", "numbers", "provenance", "question"]
    assert summary["numbers"] == {"count": 12345, "deep": {"x": 0.25}, "first_weight": 0.5, "missing": None, STANDING: STANDING}
    assert "/home/somebody" not in source + index.read_text(encoding="utf-8")


def test_same_input_same_bytes_under_any_locale_and_settings(tmp_path: Path) -> None:
    sample().write(tmp_path / "a")
    code = (
        "import sys, matplotlib; matplotlib.rcParams.update({'font.size': 22, 'svg.fonttype': 'path'})\n"
        "from hostile import sample; sample().write(sys.argv[1])"
    )
    plain = {
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    subprocess.run([sys.executable, "-X", "utf8=0", "-c", code, str(tmp_path / "b")], env=plain, check=True, cwd=tmp_path)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_a_failure_leaves_the_old_report_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short().write(tmp_path / "r")
    before = {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir()}
    put = folder._put

    def failing(path: Path, text: str) -> None:
        if path.name == "index.html":
            raise OSError(28, "No space left on device")
        put(path, text)

    monkeypatch.setattr(folder, "_put", failing)
    with pytest.raises(InterpError, match=r"^cannot write the report to .*: No space left on device; give --out"):
        short(answer="Other.").write(tmp_path / "r")
    assert {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir()} == before
    assert os.listdir(tmp_path) == ["r"]


def test_a_failed_rename_puts_the_old_report_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short().write(tmp_path / "r")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        short(answer="Other.").write(tmp_path / "r")
    assert os.listdir(tmp_path) == ["r"]
    assert "Half of it." in (tmp_path / "r" / "summary.json").read_text(encoding="utf-8")


def test_a_new_report_replaces_the_old_one_whole(tmp_path: Path) -> None:
    short().write(tmp_path / "r")
    short(claims=[]).write(tmp_path / "r")
    assert not (tmp_path / "r" / "claims.csv").exists()


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InterpError, match="holds something else than a report; give --out an empty or a new folder$"):
        short().write(tmp_path)
    (tmp_path / "empty").mkdir()
    assert short().write(tmp_path / "empty").is_file()


def test_reports_in_the_default_place_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short(model="toy").write() == Path("reports/sinks-toy/index.html")
    short(analysis="ratio_rule", model="/data/gpt2-tiny").write()
    (tmp_path / "reports" / "broken").mkdir()
    (tmp_path / "reports" / "broken" / "summary.json").write_text("{", encoding="utf-8")
    index = folder.write_index(Path("reports")).read_text(encoding="utf-8")
    links = [value for _, name, value in Page(index).attributes if name == "href" and value.endswith("index.html")]
    assert links == ["ratio-rule-gpt2-tiny/index.html", "sinks-toy/index.html"]
    assert Page(index).tags.count("b") == 0
    assert sorted(os.listdir("reports")) == ["broken", "index.html", "ratio-rule-gpt2-tiny", "sinks-toy"]


def test_viewer_pages_are_listed_beside_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short(model="toy").write()
    viewer = '<html class="interp-alone"><title>toy: &lt;b&gt; the &#39;red&#39; ball</title>'
    Path("reports/view.html").write_text(viewer, encoding="utf-8")
    Path("reports/notes.html").write_text("<title>mine</title>", encoding="utf-8")
    folder.listed(Path("reports/view.html"))
    index = Path("reports/index.html").read_text(encoding="utf-8")
    links = [value for _, name, value in Page(index).attributes if name == "href" and value.endswith(".html")]
    assert links == ["sinks-toy/index.html", "view.html"]
    assert "toy: &lt;b&gt; the &#39;red&#39; ball" in index
    (tmp_path / "elsewhere").mkdir()
    folder.listed(tmp_path / "elsewhere" / "view.html")
    assert os.listdir(tmp_path / "elsewhere") == []
