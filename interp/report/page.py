"""The page of a report, from its results and the templates alone. Self-contained: no network, readable with scripts off."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from interp.report import text
from interp.report.definitions import definitions, explained
from interp.report.svg import drawn
from interp.report.table_file import to_csv
from interp.results import Curve, Grid, Table, claims_table

if TYPE_CHECKING:
    from interp.report import Report

TEMPLATES = Path(__file__).parent / "templates"
MOST_ROWS = 200
_SCRIPT = re.compile(r"<script(?![^>]*\bapplication/json)[^>]*>(.*?)</script>", re.DOTALL)
MARKS = {"holds": "✓", "fails": "✗", "not measured here": "○"}


@lru_cache
def environment() -> jinja2.Environment:
    """Jinja with autoescape, and with every printed value passing through the one door for text."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        finalize=text.html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["prose"] = text.prose
    made.globals.update(style=Markup(_file("report.css")), script=Markup(_file("sort.js")), marks=MARKS)
    return made


@lru_cache
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


def page(report: Report) -> str:
    """The whole document, with a content security policy that lets nothing in or out but what it holds."""
    body = Markup(_render("report.html.j2", **_contents(report, "")))
    return _document(f"{report.analysis} · {text.model_name(report.model)}", body, report.question)


def fragment(report: Report) -> str:
    """The same page as a part of another (a notebook, a page of several reports): its ids begin with a digest of its contents."""
    told = [report.summary(), report.command, list(report.notes), [table.caption for table in report.files().values()]]
    told += [to_csv(table.frame) for table in report.files().values()]
    part = hashlib.sha256(text.to_json(told).encode()).hexdigest()[:8]
    return embedded(_render("report.html.j2", **_contents(report, f"r{part}-", linked=False)))


def embedded(markup: str) -> str:
    """Markup with the style and the script it needs, for a place that may hold several of its kind."""
    return _render("fragment.html.j2", body=Markup(markup))


def index(summaries: Iterable[Mapping[str, Any]], viewers: Iterable[tuple[str, str]] = ()) -> str:
    """The list of reports, one card each, then of viewer pages: (file name, title)."""
    shown = [(quote(name), title) for name, title in viewers]
    body = Markup(_render("index.html.j2", reports=list(summaries), viewers=shown))
    return _document("interp · reports", body, "All reports written here")


def table_html(table: Table, id: str = "", file: str = "", heading: bool = True) -> Markup:
    """A table as plain HTML: at most 200 rows, with the number of rows that the CSV holds."""
    return Markup(_render("table.html.j2", table=_table(table, id or table.name, file), heading=heading))


def grid_html(value: Grid | Curve, id: str = "", files: Iterable[str] = ()) -> Markup:
    """A figure with its caption, and with the definition of what it shows where there is one."""
    return Markup(_render("figure.html.j2", figure=_figure(value, id or value.name, list(files))))


def _render(name: str, **values: Any) -> str:
    return environment().get_template(name).render(**values)


def _document(title: str, body: Markup, description: str) -> str:
    scripts = [*_SCRIPT.findall(str(body)), _file("sort.js")]
    hashes = list(dict.fromkeys(map(_hash, scripts)))
    return _render("page.html.j2", title=title, body=body, description=description, hashes=hashes) + "\n"


def _hash(script: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")


def _contents(report: Report, prefix: str, linked: bool = True) -> dict[str, Any]:
    files = report.files()
    names = {id(table): name for name, table in files.items()} if linked else {}
    figures: list[Grid | Curve] = [*report.grids, *report.curves]
    claims = claims_table(report.claims).frame.to_dict("records") if report.claims else []
    claims.sort(key=lambda claim: claim["verdict"] != "fails")  # what fails stands first, else the order given
    counts = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in MARKS}
    return {
        "report": report,
        "model": text.model_name(report.model),
        "prefix": prefix,
        "linked": linked,
        "tiles": [(name.replace("_", " "), _tile(value)) for name, value in _flat(report.numbers)],
        "figures": [
            _figure(value, f"{prefix}figure-{i}", [f"{value.name if isinstance(value, Grid) else value.table.name}.csv"] * linked)
            for i, value in enumerate(figures, 1)
        ],
        "viewers": _viewers(report, prefix),
        "tables": [_table(table, f"{prefix}table-{i}", names.get(id(table), "")) for i, table in enumerate(report.tables, 1)],
        "claims": claims,
        "counts": {verdict: count for verdict, count in counts.items() if count},
        "explained": explained(report.definitions),
        "files": [(name, len(table.frame), table.caption) for name, table in files.items()],
        "provenance": [(name, _tile(value)) for name, value in _flat(text.plain(report.provenance))],
    }


def _viewers(report: Report, prefix: str) -> list[tuple[str, str, Markup]]:
    """(id, title, markup) of each capture; none where the viewer is not installed."""
    if not report.captures:
        return []
    try:
        embed = import_module("interp.report.viewer").embed
    except ImportError:
        return []
    names = [f"{prefix}viewer-{i}" for i in range(1, len(report.captures) + 1)]
    titles = [" ".join(capture.text.split())[:80] or f"{capture.n_tokens} tokens" for capture in report.captures]
    return [(name, title, Markup(embed(c, name))) for name, title, c in zip(names, titles, report.captures, strict=True)]


def _flat(numbers: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in numbers.items():
        path = f"{above} · {name}" if above else str(name)
        rows += _flat(value, path) if isinstance(value, Mapping) else [(path, value)]
    return rows


def _tile(value: Any) -> str:
    value = text.plain(value) if not isinstance(value, float) else value
    if value is None:
        return "–"
    if isinstance(value, float) and len(str(value)) < 5:  # a setting, as it was given: 0.3
        return text.numbers([value])(value)
    if isinstance(value, (bool, int, float)):
        return text.number(value)
    if isinstance(value, list):
        return ", ".join(map(_tile, value))
    return str(value)


def _figure(value: Grid | Curve, id: str, files: list[str]) -> dict[str, Any]:
    note = ""
    if isinstance(value, Grid) and (unseen := int((~np.isfinite(value.values)).sum())):
        note = f"{unseen} of {value.values.size} cells have no value and are hatched."
    return {
        "id": id,
        "title": value.name.replace("_", " "),
        "caption": value.caption,
        "note": note,
        "definition": definitions.get(value.name, ""),
        "svg": drawn(value, id),
        "files": files,
    }


def _table(table: Table, id: str, file: str) -> dict[str, Any]:
    frame = table.frame.head(MOST_ROWS)
    columns = [str(name) for name in frame.columns]
    kinds = [_kind(frame.iloc[:, i]) for i in range(len(columns))]
    by_column = [_cells(frame.iloc[:, i].tolist(), str if _is_id(columns[i]) else None) for i in range(len(columns))]
    return {
        "id": id,
        "name": table.name.replace("_", " "),
        "caption": table.caption,
        "file": file,
        "head": list(zip(columns, kinds, strict=True)),
        "rows": list(zip(*by_column, strict=True)),
        "total": len(table.frame),
        "shown": len(frame),
        "meanings": [(name, table.meanings[name]) for name in columns if name in table.meanings],
    }


def _kind(column: pd.Series) -> str:
    """How its cells are set: n numbers, s short texts that stay on one line, l long ones that need room, "" between."""
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return "n"
    longest = max((len(str(value)) for value in column), default=0)
    return "s" if longest <= 30 else "l" if longest > 60 else ""


def _is_id(column: str) -> bool:
    """Numbers that are names: no separators in them."""
    return column in ("id", "seed") or column.endswith("_id")


def _cells(values: list[Any], shown: Callable[[int | float], str] | None = None) -> list[tuple[Markup, str]]:
    shown = shown or text.numbers(values)
    return [_cell(value, shown) for value in values]


def _cell(value: Any, shown: Callable[[int | float], str]) -> tuple[Markup, str]:
    """(what the cell shows, its sorting key): numbers rounded for the eye, the key exact."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return text.cell(value), ""
    if value is None or value is pd.NA or value is pd.NaT:
        return Markup("–"), "nan"
    if isinstance(value, (bool, int, float)):
        return text.html(shown(value)), repr(float(value))
    return text.html(str(value)), ""
