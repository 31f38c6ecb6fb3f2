"""From `interp run NAME --option value` to a call of NAME's run(): its signature says which options there are, their types and defaults.

Nothing is registered: an analysis is a module of the package `analyses`, or any file, with a function run(...) that returns a Report.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer

from interp import cli
from interp.errors import InterpError, UnknownName
from interp.stores import Stored

if TYPE_CHECKING:
    from interp.capturing import Capture

STANDARD = {
    "model": "toy, smollm2, a hub id (gpt2), a folder.",
    "texts": ".txt (one text a line), .jsonl (field text), .csv or .parquet (column text), a glob, or - for stdin; may be repeated.",
    "captures": "A recording to read in place of running a model; may be repeated.",
    "bos": "keep = as the tokenizer does by itself; add = one BOS in front; none.",
    "layers": "Such as 0,3-5; numbers from 0.",
    "max_tokens": "Keep the first so many tokens of each text.",
    "limit": "At most so many texts.",
    "skip_bad": "Count bad lines of a corpus and go on.",
    "seed": "Of everything drawn at random.",
    "dtype": "float32, float16, bfloat16.",
    "device": "auto, cpu, cuda.",
    "engine": "local = this process; ray = workers of Ray, on this machine or a cluster (docs/ray.md).",
    "address": "Of a Ray cluster: auto on one of its nodes, or host:6379; Ray is started here unless given.",
    "workers": "Processes of Ray that hold the model; one a core, or one for each --gpus-per-worker GPUs.",
    "gpus_per_worker": "GPUs of each of them.",
}
_OPTION = {"captures": "capture"}
_MANY = {"texts", "captures"}


def questions() -> list[tuple[str, str]]:
    """(name, question) of every analysis: the first line of its docstring, read without importing it."""
    import analyses

    names = sorted(module.name for module in pkgutil.iter_modules(analyses.__path__) if not module.name.startswith("_"))
    return [(name, _question(Path(analyses.__path__[0]) / f"{name}.py")) for name in names]


def _question(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def overview() -> str:
    """What `interp run` alone prints."""
    known = questions()
    width = max((len(name) for name, _ in known), default=0)
    listed = "\n".join(f"  {name:<{width}}  {question}" for name, question in known)
    return f"interp run NAME|FILE.py [--option value]...\n\n{listed}\n\ninterp run NAME --help shows what NAME takes."


def find(name: str) -> Any:
    """The function run() of an analysis, by name or by path."""
    module = _from_file(Path(name)) if name.endswith(".py") else _by_name(name)
    if not callable(function := getattr(module, "run", None)):
        raise InterpError(f"{name} has no function run(...); an analysis is a file with run(...) -> Report")
    return function


def _by_name(name: str) -> ModuleType:
    known = [known for known, _ in questions()]
    if name not in known:
        if name.startswith("-"):
            raise InterpError(f"{name} came before the analysis; write interp run NAME {name} …")
        raise UnknownName("analysis", name, known, "or give the path of a file: ./mine.py")
    return importlib.import_module(f"analyses.{name}")


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InterpError(f"no file {path}; give the path of an analysis, or its name: interp list shows them")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def run(name: str, arguments: Sequence[str]) -> int:
    """Find the analysis, parse its own options, run it, write its report; the exit code."""
    title = Path(name).stem if name.endswith(".py") else name
    return cli.call(command(title, find(name), name), list(arguments), name=f"interp run {name}")


def command(title: str, function: Any, asked: str | None = None) -> typer.Typer:
    """A command with one option for each parameter of `function`, and --out."""
    parameters = _parameters(function)

    def body(**given: Any) -> int:
        out = given.pop("out")
        options = {key: value for key, value in given.items() if value != _default(parameters[key])}
        if options.get("captures") and (clash := options.keys() & {"model", "texts"}):
            raise InterpError(f"--capture brings its own model and text; leave out --{' and --'.join(sorted(clash))}")
        if out is not None:
            from interp.report.folder import ready

            ready(out)
        report = function(**{key: _value(key, value, parameters[key], title) for key, value in options.items()})
        if not report.command:
            report = dataclasses.replace(report, command=_shown(asked or title, options))
        with cli._writing(out or Path("reports")):
            path = report.write(out) if out is not None else report.write()
        print(report.answer)
        print(_nearby(path))
        return 0

    body.__doc__ = inspect.getdoc(inspect.getmodule(function))
    out = typer.Option(None, "--out", help="The folder to write; reports/<analysis>-<model>/ by default.")
    keyword = inspect.Parameter.KEYWORD_ONLY
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(
                inspect.Parameter(key, keyword, default=_option(key, each), annotation=_kind(each))
                for key, each in parameters.items()
            ),
            inspect.Parameter("out", keyword, default=out, annotation=Path | None),
        ]
    )
    body.__annotations__ = {key: each.annotation for key, each in body.__signature__.parameters.items()}  # type: ignore[attr-defined]
    made = _Analysis(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    made.takes, made.title = [*map(_flag, parameters), "--out"], title
    made.command()(body)
    return made


class _Analysis(typer.Typer):
    """A Typer whose refusal of an unknown option says what the analysis does take."""

    takes: list[str]
    title: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except cli._USAGE_ERROR as error:
            if (option := getattr(error, "option_name", None)) and type(error).__name__ == "NoSuchOption":
                raise InterpError(f"{self.title} takes no {option}; it takes {', '.join(self.takes)}") from None
            raise


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    kept = inspect.signature(function).parameters
    odd = [each.name for each in kept.values() if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY)]
    if odd:
        raise InterpError(f"run() has the parameter {odd[0]!r}, which no option can fill; name each parameter")
    return dict(kept)


def _flag(key: str) -> str:
    return "--" + _OPTION.get(key, key).replace("_", "-")


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.name in _MANY or parameter.name == "layers":
        return None
    default = None if parameter.default is parameter.empty else parameter.default
    return ",".join(map(str, default)) if isinstance(default, (list, tuple)) else default


def _option(key: str, parameter: inspect.Parameter) -> Any:
    flags = (f"{_flag(key)}/--no-{key.replace('_', '-')}",) if _kind(parameter) == bool | None else (_flag(key),)
    required = parameter.default is parameter.empty
    return typer.Option(... if required else _default(parameter), *flags, help=STANDARD.get(key, ""))


def _kind(parameter: inspect.Parameter) -> Any:
    """The type that the command line converts to, from the annotation's words or else the default's type."""
    if parameter.name in _MANY:
        return list[str] | None
    if parameter.name == "layers":
        return str | None
    default, words = parameter.default, re.findall(r"\w+", str(parameter.annotation))
    for kind in (bool, int, float):
        if type(default) is kind or (
            default is None and kind.__name__ in words and "str" not in words and not _listed(parameter)
        ):
            # An int default does not forbid 0.5 where the annotation says float.
            return (float if kind is int and "float" in words else kind) | None
    return str | None


def _listed(parameter: inspect.Parameter) -> bool:
    words = re.findall(r"\w+", str(parameter.annotation))
    return isinstance(parameter.default, (list, tuple)) or not {"list", "tuple", "Sequence"}.isdisjoint(words)


def _value(key: str, value: Any, parameter: inspect.Parameter, title: str) -> Any:
    if key == "texts":
        return source_of(value)
    if key == "captures":
        return Recordings(map(Path, value))
    if key == "layers":
        return layer_numbers(value)
    if isinstance(value, str) and _listed(parameter):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if key == "model":
            return parts if len(parts) > 1 else value
        return _converted(parts, parameter, key)
    if key == "model" and "," in value:
        raise InterpError(f"{title} takes one model; got {value}")
    return value


def _converted(parts: list[str], parameter: inspect.Parameter, key: str) -> list[Any]:
    words = re.findall(r"\w+", str(parameter.annotation))
    example = parameter.default[0] if isinstance(parameter.default, (list, tuple)) and parameter.default else None
    for kind in (int, float):
        if type(example) is kind or (example is None and kind.__name__ in words):
            try:
                return [kind(part) for part in parts]
            except ValueError:
                raise InterpError(f"{_flag(key)} takes numbers with commas between; got {','.join(parts)}") from None
    return parts


def source_of(given: list[str] | None) -> Any:
    """What corpus.texts takes: nothing, one file, glob or "-", or several."""
    if not given:
        return None
    return given[0] if len(given) == 1 else [Stored(each) if "://" in each else Path(each) for each in given]


def layer_numbers(written: str) -> list[int]:
    """Layer numbers as written on a command line.

    >>> layer_numbers("0,3-5")
    [0, 3, 4, 5]
    """
    numbers: list[int] = []
    for part in written.split(","):
        if not (found := re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)):
            raise InterpError(f"layers {written!r} are not understood; write 0,3-5")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise InterpError(f"layers {part.strip()!r} run backwards; write {high}-{low}")
        numbers += range(low, high + 1)
    return numbers


class Recordings(Sequence["Capture"]):
    """Capture files as a sequence of Captures, each read when it is asked for, so that many never lie in memory together."""

    def __init__(self, paths: Any) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: Any) -> Any:
        from interp.capturing import read

        return Recordings(self.paths[place]) if isinstance(place, slice) else read(self.paths[place])

    def __iter__(self) -> Iterator[Capture]:
        return (self[place] for place in range(len(self)))


def _shown(asked: str, options: dict[str, Any]) -> str:
    words = ["interp", "run", asked]
    for key, value in options.items():
        if isinstance(value, bool):
            words.append(_flag(key) if value else f"--no-{key.replace('_', '-')}")
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [_flag(key), str(each)]
    return shlex.join(words)


def _nearby(path: Path) -> Path:
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
