"""Report to folder: written beside, then renamed, so that nobody ever sees half of one. UTF-8 whatever the locale."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import InterpError
from interp.report import page
from interp.report.table_file import to_csv
from interp.report.text import to_json

if TYPE_CHECKING:
    from interp.report import Report

DEFAULT = Path("reports")


def write(report: Report, out: Path | None) -> Path:
    """Writes the report's folder and returns the path of its index.html; lists it in the index of the default place."""
    target = DEFAULT / report.folder if out is None else out
    ready(target)
    real = target.resolve()
    files = {name: to_csv(table.frame) for name, table in report.files().items()}
    files["summary.json"] = to_json(report.summary(), indent=2) + "\n"
    files["index.html"] = page.page(report)
    try:
        with _replacing(real) as new:
            for name, text in files.items():
                _put(new / name, text)
        listed(real)
    except OSError as error:
        raise _cannot(target, error) from error
    return target / "index.html"


def ready(target: Path) -> None:
    """Refuses a place that cannot take a report, before anything is measured for it; leaves nothing there."""
    real = target.resolve()
    if real.exists() and not (real.is_dir() and ((real / "summary.json").is_file() or not any(real.iterdir()))):
        raise InterpError(f"{target} holds something else than a report; give --out an empty or a new folder")
    there = next(folder for folder in real.parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".interp-", dir=there):
            pass
    except OSError as error:
        raise _cannot(target, error) from error


def _cannot(target: Path, error: OSError) -> InterpError:
    return InterpError(f"cannot write the report to {target}: {error.strerror or error}; give --out a folder that can be written")


def listed(written: Path) -> None:
    """Lists what was just written in the index, where it lies in the default place."""
    if written.resolve().parent == DEFAULT.resolve():
        write_index(DEFAULT)


def write_index(place: Path) -> Path:
    """Writes the list of all reports and viewer pages found under `place` to its index.html and returns that path."""
    index = place / "index.html"
    temporary = place / f".index.{os.getpid()}.html"
    try:
        _put(temporary, page.index(found(place), viewers(place)))
        temporary.replace(index)
    finally:
        temporary.unlink(missing_ok=True)
    return index


def found(place: Path) -> list[dict[str, Any]]:
    """Summaries of the reports under `place`, in order of their folders, each with its `folder`; unreadable ones are left out."""
    summaries = []
    for path in sorted(place.rglob("summary.json")):
        folder = path.parent.relative_to(place).as_posix()
        if any(part.startswith(".") for part in path.relative_to(place).parts) or not (path.parent / "index.html").is_file():
            continue
        with contextlib.suppress(ValueError, OSError):
            summary = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(summary, dict) and all(
                isinstance(summary.get(key), str) for key in ("analysis", "model", "question", "answer")
            ):
                files = sorted(file.name for file in path.parent.glob("*.csv"))
                summaries.append({**summary, "folder": folder, "files": files})
    return summaries


def viewers(place: Path) -> list[tuple[str, str]]:
    """(file name, title) of each viewer page that lies in `place` itself, in order of their names."""
    pages = []
    for path in sorted(place.glob("*.html")):
        if path.name == "index.html" or path.name.startswith("."):
            continue
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(4000)
            title = re.search(r"<title>(.*?)</title>", head, re.DOTALL)
            if "interp-alone" in head and title:
                pages.append((path.name, unescape(title[1])))
    return pages


def _put(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A new empty folder beside `target` that takes its place at the end; on any failure it goes and `target` stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new, old = (target.parent / f".{target.name}.{os.getpid()}.{kind}" for kind in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
