"""Results as values: they check themselves, plot on given axes, and show themselves in a notebook without clashing."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from interp.errors import InterpError
from interp.report import from_csv
from interp.results import Claim, Curve, Grid, Table, claims_table

HEADS = np.array([[0.1, 0.2, 0.3], [0.4, np.nan, 1.0]])


def heads(**changes: object) -> Grid:
    made = {
        "name": "first_weight",
        "caption": "Heads.",
        "unit": "mean weight",
        "values": HEADS,
        "rows": range(2),
        "columns": range(3),
    }
    return Grid(**{"limits": (0, 1), **made, **changes})  # type: ignore[arg-type]


def test_a_table_checks_itself() -> None:
    with pytest.raises(InterpError, match=r"^Table name '\.\./x' becomes a file name: use a-z, 0-9 and _$"):
        Table("../x", "", pd.DataFrame({"a": [1]}))
    with pytest.raises(InterpError, match=r"^table 't' needs columns, each once; got \['a', 'a'\]$"):
        Table("t", "", pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InterpError, match=r"^table 't' explains columns it does not have: \['b'\]$"):
        Table.of("t", "", [{"a": 1}], b="what")


def test_a_table_keeps_the_order_of_its_first_row_and_writes_csv(tmp_path: Path) -> None:
    table = Table.of("t", "", [{"token": "=1", "n": 2}, {"token": "b", "n": 3}], n="count")
    assert table.to_csv(tmp_path / "t.csv") == '"token","n"\r\n"\'=1",2\r\n"b",3\r\n'
    pd.testing.assert_frame_equal(from_csv(tmp_path / "t.csv"), table.frame, check_dtype=False)


def test_a_grid_checks_itself_and_cannot_be_written_into() -> None:
    with pytest.raises(InterpError, match=r"^grid 'first_weight' has values \(2, 3\) but 2 row and 2 column labels$"):
        heads(columns=range(2))
    with pytest.raises(InterpError, match=r"^grid 'first_weight' holds 0\.1\.\.1, outside its limits 0\.\.0\.5$"):
        heads(limits=(0, 0.5))
    source = HEADS.copy()
    grid = heads(values=source)
    source[0, 0] = 9
    assert grid.values[0, 0] == 0.1
    with pytest.raises(ValueError, match="read-only"):
        grid.values[0, 0] = 1


def test_a_grid_as_a_tidy_frame() -> None:
    frame = heads().frame()
    assert frame.columns.tolist() == ["layer", "head", "first_weight"]
    assert frame["layer"].tolist() == [0, 0, 0, 1, 1, 1]
    assert frame["head"].tolist() == [0, 1, 2, 0, 1, 2]
    np.testing.assert_array_equal(frame["first_weight"], HEADS.ravel())


def test_labels_that_repeat_get_their_positions() -> None:
    frame = heads(rows=("to", "to"), columns=("a", "b", "c"), row_axis="query", column_axis="key").frame()
    assert frame.columns.tolist() == ["query_position", "query", "key", "first_weight"]
    assert frame["query_position"].tolist() == [0, 0, 0, 1, 1, 1]
    assert heads(rows=("07", "1")).frame()["layer"].tolist()[0] == "07"


def test_a_curve_names_the_columns_it_lacks() -> None:
    table = Table.of("t", "", [{"x": 1, "y": 2}])
    with pytest.raises(InterpError, match=r"^curve 'c' draws columns that table 't' lacks: \['z', 'u'\]$"):
        Curve("c", "", table, "x", ("z",), baseline="u")


@pytest.mark.parametrize(("measured", "verdict"), [(0.5, "holds"), (0.5051, "fails"), (math.nan, "fails"), (math.inf, "fails")])
def test_a_claim_with_a_number_judges_itself(measured: float, verdict: str) -> None:
    assert Claim.number("a", "s", "c", expected=0.5, measured=measured, tolerance=0.005, model="toy").verdict == verdict


def test_claims_as_a_table() -> None:
    claims = [
        Claim.judged("b", "s", "c", expected="> 1", measured="2", holds=True, model="toy"),
        Claim.unmeasured("u", "s", "c", expected="1", model="m", why="w"),
    ]
    frame = claims_table(claims).frame
    assert frame["verdict"].tolist() == ["holds", "not measured here"]
    assert claims_table([]).frame.columns.tolist() == frame.columns.tolist()


def test_plot_draws_on_the_axes_given_and_returns_them() -> None:
    from matplotlib.figure import Figure

    before, after = Figure().subplots(1, 2)
    assert heads().plot(ax=after, annot=False) is after
    assert not before.collections
    mesh = after.collections[-1]
    assert mesh.get_clim() == (0, 1)
    assert np.ma.getmaskarray(mesh.get_array()).ravel().tolist() == np.isnan(HEADS).ravel().tolist()
    assert (after.get_xlabel(), after.get_ylabel()) == ("head", "layer")
    assert after.yaxis_inverted()  # row 0 on top
    table = Table.of("t", "", [{"x": 1, "y": 2, "u": 1}, {"x": 2, "y": 3, "u": 1}])
    assert Curve("c", "", table, "x", ("y",), baseline="u").plot(before) is before
    assert [line.get_linestyle() for line in before.lines] == ["-", "--"]


def test_each_line_has_its_own_band() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    table = Table.of("t", "", [{"x": i, "y": i, "z": 2 * i, "a": i - 1, "b": i + 1, "c": 0, "d": 9} for i in range(4)])
    Curve("c", "", table, "x", ("y", "z"), band=[("a", "b"), ("c", "d")]).plot(ax)
    first, second = (set(band.get_paths()[0].vertices[:, 1].tolist()) for band in ax.collections)
    assert first == {-1, 0, 1, 2, 3, 4}
    assert second == {0, 9}
    assert Curve("c", "", table, "x", ("y", "z"), band=("a", "b")).bands == {"y": ("a", "b")}
    with pytest.raises(InterpError, match=r"draws columns that table 't' lacks: \['low'\]"):
        Curve("c", "", table, "x", ("y", "z"), band=[("a", "b"), ("low", "d")])


def test_a_lone_surrogate_is_kept_in_tables_and_frames() -> None:
    table = Table.of("t", "", [{"token": "\ud83e", "n": 1}, {"token": "a", "n": 2}])
    assert table.frame["token"].tolist() == ["\ud83e", "a"]
    grid = heads(rows=["\ud83e", "b"])
    assert grid.frame()["layer"].tolist() == ["\ud83e"] * 3 + ["b"] * 3


def test_positions_are_ticked_in_whole_numbers() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    Curve("c", "", Table.of("t", "", [{"x": i, "y": 0.5} for i in range(1, 21)]), "x", ("y",)).plot(ax)
    assert all(float(tick).is_integer() for tick in ax.get_xticks())
    ax = Figure().subplots()
    Curve("c", "", Table.of("t", "", [{"x": x, "y": 0.5} for x in (0.2, 0.4)]), "x", ("y",)).plot(ax)
    assert not all(float(tick).is_integer() for tick in ax.get_xticks())


def test_ids_are_shown_without_separators() -> None:
    shown = Table.of("t", "", [{"token_id": 15771, "rows": 15771}])._repr_html_()
    assert ">15771</td>" in shown
    assert ">15,771</td>" in shown


def test_a_signed_grid_is_centred_on_zero() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    heads(values=[[-0.5, 0.1, 0.0], [0.2, 0.1, 0.0]], limits=None, signed=True).plot(ax)
    assert ax.collections[-1].get_clim() == (-0.5, 0.5)


def test_plotting_leaves_the_settings_of_matplotlib_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    heads()._repr_html_()
    assert dict(matplotlib.rcParams) == before


def test_several_values_in_one_notebook_do_not_clash() -> None:
    table = Table.of("t", "", [{"x": 1, "y": 2}, {"x": 2, "y": 3}])
    shown = [
        heads()._repr_html_(),
        heads(values=HEADS / 2)._repr_html_(),
        table._repr_html_(),
        Table.of("t", "", [{"x": 1, "y": 3}])._repr_html_(),
        Curve("c", "", table, "x", ("y",))._repr_html_(),
    ]
    ids = [set(re.findall(r' id="([^"]+)"', page)) for page in shown]
    assert all(not one & other for i, one in enumerate(ids) for other in ids[i + 1 :])
    for page in shown:
        assert set(re.findall(r"(?:url\(#|href=\"#)([^\")]+)", page)) <= set(re.findall(r' id="([^"]+)"', page))


def test_values_load_neither_matplotlib_nor_torch() -> None:
    code = "import sys, interp.results, interp.report; sys.exit(any(m in sys.modules for m in ('matplotlib', 'seaborn', 'torch', 'jinja2')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
