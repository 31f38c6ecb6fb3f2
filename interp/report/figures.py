"""Grids and curves drawn with seaborn on Matplotlib axes. Draws what the value says and nothing else; opens no window.

Row = query (or layer), column = key (or head), said on the axes; limits come from the value; unseen cells are hatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.report.text import label, number, visible, width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from interp.results import Curve, Grid

# Stand-ins that `svg.clean` turns into the page's own colours, so that a figure follows light and dark.
INK, QUIET, UNSEEN, BACK = "#15181d", "#5a6169", "#c9cdd2", "#fefefe"
# At least 3:1 on the light and on the dark card; told apart by dash and marker too.
LINES = ("#2a7fc9", "#d2691e", "#1f9470", "#b65aa8", "#8a7a1f", "#6a74c9", "#c2506a", "#5f8a8b")
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "interp", "text.parse_math": False, "font.family": ["DejaVu Sans"], "font.size": 10,
    "axes.unicode_minus": True, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": QUIET, "axes.linewidth": 0.8,
    "xtick.color": QUIET, "ytick.color": QUIET, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "figure.facecolor": "none",
    "axes.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False, "hatch.color": QUIET, "hatch.linewidth": 0.5,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": UNSEEN, "grid.linewidth": 0.6,
}  # fmt: skip
MOST_LABELS = 40
MOST_VECTOR_CELLS = 6000


def styled() -> Any:
    """Matplotlib's settings for the figures of reports, as a context manager: the person's own settings stay as they were."""
    import matplotlib

    settings: Any = {**{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}, **STYLE}
    return matplotlib.rc_context(settings)


def figure(value: Grid | Curve) -> Figure:
    """A new figure of one value, of the size that its labels need. Call inside `styled()`."""
    from matplotlib.figure import Figure as NewFigure

    from interp.results import Grid

    is_grid = isinstance(value, Grid)
    drawn = NewFigure(figsize=_grid_size(value) if isinstance(value, Grid) else (5.8, 3.2))
    axes = drawn.add_subplot()
    (draw_grid if is_grid else draw_curve)(value, axes)  # type: ignore[arg-type]
    return drawn


def _grid_size(grid: Grid) -> tuple[float, float]:
    rows, columns = len(grid.rows), len(grid.columns)
    across, down = min(0.44, 5.4 / columns), min(0.29, max(5.4 / rows, 0.17), 8.5 / rows)
    if rows == columns:
        across = down = min(0.36, 5.4 / columns)
    return max(across * columns, 1.4) * 1.3, max(down * rows, 0.8) * 1.3  # the axes take about 1/1.3 of either side


def _steps(labels: Sequence[str]) -> list[int]:
    step = 1
    for step in (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000, 2000, 5000):
        if len(labels) / step <= MOST_LABELS:
            break
    return list(range(0, len(labels), step))


def draw_grid(grid: Grid, axes: Axes, **options: Any) -> None:
    """A heat map: fixed limits where the grid has them, a diverging scale around 0 where it is signed, unseen cells hatched."""
    import seaborn

    values = np.ma.masked_invalid(grid.values)
    seen = values.compressed()
    low, high = grid.limits or ((float(seen.min()), float(seen.max())) if seen.size else (0.0, 1.0))
    if grid.signed:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    if low == high:
        high = low + 1.0
    small = grid.values.size <= 150 and len(grid.columns) <= 13
    settings: dict[str, Any] = {
        "vmin": low, "vmax": high, "cmap": "vlag" if grid.signed else _shades(), "annot": _written(grid.values, low, high) if small else None, "fmt": "",
        "annot_kws": {"fontsize": 8}, "linewidths": 0.4 if grid.values.size <= 1000 else 0, "linecolor": BACK,
        "rasterized": grid.values.size > MOST_VECTOR_CELLS, "xticklabels": False, "yticklabels": False,
        "cbar_kws": {"label": visible(grid.unit)}, "cbar_ax": _beside(axes),
    }  # fmt: skip
    axes.set_facecolor(UNSEEN)
    if values.mask.any():
        across, down = len(grid.columns), len(grid.rows)
        axes.fill_between([0, across], 0, down, facecolor=UNSEEN, edgecolor=QUIET, hatch="////", linewidth=0, zorder=0)
    with np.errstate(all="ignore"):
        seaborn.heatmap(grid.values, mask=values.mask, ax=axes, **{**settings, **options})
    _ticks(axes, grid)
    if axes.collections and (bar := axes.collections[-1].colorbar) is not None:
        bar.outline.set_visible(False)  # type: ignore[operator]
    axes.set_xlabel(visible(grid.column_axis))
    axes.set_ylabel(visible(grid.row_axis))


def _shades() -> Any:
    """Light to dark without the last fifth: the highest cell must not vanish into a dark page."""
    import seaborn
    from matplotlib.colors import ListedColormap

    return ListedColormap(seaborn.color_palette("mako_r", 256)[:205], "shades")


def _beside(axes: Axes) -> Axes:
    """Axes for the colour bar: as high as the map, of one width whatever the size of the map."""
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    return make_axes_locatable(axes).append_axes("right", size=0.13, pad=0.13)


def _written(values: np.ndarray, low: int | float, high: int | float) -> np.ndarray:
    """The numbers inside the cells of a small map, all with as many decimals as the scale needs."""
    largest = max(abs(low), abs(high))
    form = ".2f" if largest < 10 else ".0f" if largest < 1000 else ".1e"
    return np.array([[f"{value:{form}}".replace("-", "−") for value in row] for row in values], dtype=object)


def _ticks(axes: Axes, grid: Grid) -> None:
    across, down = _steps(grid.columns), _steps(grid.rows)
    names = [label(grid.columns[i]) for i in across]
    long = max(map(width, names), default=0) > 3
    axes.set_xticks([i + 0.5 for i in across], names, rotation=90 if long else 0)
    axes.set_yticks([i + 0.5 for i in down], [label(grid.rows[i]) for i in down], rotation=0)
    axes.tick_params(length=0, labelsize=9)


def draw_curve(curve: Curve, axes: Axes) -> None:
    """Lines, points or bars over the rows of the curve's table, with its band and its dashed baseline."""
    draw = {"line": _lines, "points": _points, "bars": _bars}[curve.kind]
    draw(curve, axes)
    if curve.kind != "bars":
        _bands(curve, axes)
    if curve.baseline is not None:
        _baseline(curve, axes)
    if curve.log_x:
        axes.set_xscale("log")
    if curve.log_y:
        axes.set_yscale("log")
    if curve.y_limits is not None:
        axes.set_ylim(*curve.y_limits)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            _decades(axis)
        elif axis is axes.xaxis and curve.kind != "bars" and _counted(curve.table.frame[curve.x]):
            axis.set_major_locator(_whole())
    axes.set_xlabel(visible(curve.x_label or _said(curve.x)))
    axes.set_ylabel(visible(curve.y_label or ", ".join(map(_said, curve.y))))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    _legend(curve, axes)


def _bands(curve: Curve, axes: Axes) -> None:
    """The band of each y, in the colour of its line."""
    for i, (_, part, column) in enumerate(_series(curve)):
        if column in curve.bands:
            rows = part.sort_values(curve.x, kind="stable")
            low, high = curve.bands[column]
            axes.fill_between(rows[curve.x], rows[low], rows[high], color=LINES[i % len(LINES)], alpha=0.18, linewidth=0)


def _decades(axis: Any) -> None:
    """Ticks of a logarithmic axis: every power of ten, and 2 and 5 times them where there are few."""
    from matplotlib.ticker import LogLocator

    low, high = sorted(np.log10(axis.get_view_interval()))
    if high - low < 2:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(_power)
    axis.set_minor_formatter("")


def _counted(column: Any) -> bool:
    return column.dtype.kind in "iuf" and bool((column.dropna() % 1 == 0).all())


def _whole() -> Any:
    """Ticks for what is counted: positions, layers."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True)


def _baseline(curve: Curve, axes: Axes) -> None:
    frame, column = curve.table.frame, str(curve.baseline)
    look: dict[str, Any] = {"color": INK, "linewidth": 1.3, "label": _said(column), "linestyle": (0, (5, 3))}
    if curve.kind == "bars":
        level = frame.groupby(curve.x, sort=False)[column].first()
        place = np.arange(len(level))
        axes.hlines(level, place - 0.45, place + 0.45, **look)
    else:
        rows = frame.sort_values(curve.x, kind="stable").drop_duplicates([curve.x, column])
        axes.plot(rows[curve.x], rows[column], **look)


def _power(value: float, _: int | float = 0) -> str:
    """A tick of a logarithmic axis: 0.01, 1, 1,000, and 10⁻⁶ beyond."""
    if value <= 0 or 1e-3 <= value <= 1e5:
        return number(value).rstrip("0").rstrip(".") if 0 < value < 1 else number(value)
    exponent = int(np.floor(np.log10(value) + 1e-9))
    times = round(value / 10.0**exponent)
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if times == 1 else f"{times}·{power}"


def _said(column: str) -> str:
    return visible(column.replace("_", " "))


def _categories(curve: Curve) -> list[Any]:
    return list(dict.fromkeys(curve.table.frame[curve.x]))


def _parts(curve: Curve) -> list[tuple[str, Any]]:
    """The rows of each line: one part, or one for each value of `group` in order of appearance."""
    frame = curve.table.frame
    if curve.group is None:
        return [("", frame)]
    return [(label(str(name), 28), part) for name, part in frame.groupby(curve.group, sort=False)]


def _series(curve: Curve) -> list[tuple[str, Any, str]]:
    """(name, rows, column) of each thing drawn."""
    many = len(curve.y) > 1
    return [
        (" · ".join(filter(None, (name, _said(column) if many or not name else ""))), part, column)
        for name, part in _parts(curve)
        for column in curve.y
    ]


def _lines(curve: Curve, axes: Axes) -> None:
    import seaborn

    dashes = ("", (4, 1.5), (1, 1), (3, 1, 1, 1))
    for i, (name, part, column) in enumerate(_series(curve)):
        mark = {"marker": "o", "markersize": 4, "markeredgewidth": 0} if len(part) <= 24 else {}
        look = {"color": LINES[i % len(LINES)], "linewidth": 1.8, "linestyle": (0, dashes[i % 4]) if i % 4 else "-"}
        rows = part.sort_values(curve.x, kind="stable")
        seaborn.lineplot(
            data=rows, x=curve.x, y=column, ax=axes, estimator=None, errorbar=None, label=name, legend=False, **look, **mark
        )


def _points(curve: Curve, axes: Axes) -> None:
    import seaborn

    marks = "osD^vPX*"
    many = len(curve.table.frame) * len(curve.y) > 3000
    for i, (name, part, column) in enumerate(_series(curve)):
        look = {"color": LINES[i % len(LINES)], "s": 16 if len(part) > 60 else 30, "alpha": 0.75, "marker": marks[i % len(marks)]}
        seaborn.scatterplot(
            data=part, x=curve.x, y=column, ax=axes, label=name, legend=False, linewidth=0, rasterized=many, **look
        )


def _bars(curve: Curve, axes: Axes) -> None:
    series, names = _series(curve), _categories(curve)
    thick = 0.8 / len(series)
    for i, (name, part, column) in enumerate(series):
        level = dict(zip(part[curve.x], part[column], strict=True))
        place = [n - 0.4 + thick * (i + 0.5) for n in range(len(names))]
        axes.bar(place, [level.get(n, np.nan) for n in names], thick * 0.92, label=name, color=LINES[i % len(LINES)])
        if column in curve.bands:
            ends = [dict(zip(part[curve.x], part[end], strict=True)) for end in curve.bands[column]]
            axes.vlines(
                place, [ends[0].get(n, np.nan) for n in names], [ends[1].get(n, np.nan) for n in names], color=INK, linewidth=1
            )
    shown = _steps(list(map(str, names)))
    words = [label(str(names[i]), 22) for i in shown]
    crowded = sum(map(width, words)) + 2 * len(words) > 76
    axes.set_xticks(shown, words, rotation=90 if crowded else 0)
    axes.tick_params(axis="x", length=0)


def _legend(curve: Curve, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if len(handles) < 2:
        return
    longest = max(map(width, names))
    columns = max(1, min(len(names), 78 // (longest + 8)))
    axes.legend(
        handles, names, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, borderaxespad=0, fontsize=9, handlelength=2.4
    )
