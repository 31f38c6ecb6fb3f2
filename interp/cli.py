"""The command `interp`: run, list, capture, audit, view. Imports no torch before a command needs it.

Exit 0 done, 1 a check failed, 2 bad input (one line on stderr, nothing written), 130 interrupted. The last line on stdout is the
path of what was written. An error that is no bad input is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.errors import InterpError

# Typer brings its own copy of click in some versions and uses click in others: both are found from here.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]

Text_ = Annotated[str, typer.Option("--text", help="One text, as it is.")]
Model_ = Annotated[str, typer.Option("--model", help="toy, smollm2, a hub id (gpt2), a folder.")]
Bos = Annotated[str, typer.Option(help="keep = as the tokenizer does by itself; add = one BOS in front; none.")]
MaxTokens = Annotated[int | None, typer.Option(help="Keep the first so many tokens.")]
Dtype = Annotated[str, typer.Option(help="float32, float16, bfloat16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda.")]
Layers = Annotated[str | None, typer.Option(help="Such as 0,3-5; numbers from 0.")]

app = typer.Typer(
    help="Capture, measure and report what attention does inside a language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the boxes would double what --help takes
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    sys.exit(_said(call(app, arguments)))


def call(command: typer.Typer, arguments: list[str] | None = None, name: str = "interp") -> int:
    """The exit code of one command; bad input becomes one line on stderr."""
    try:
        return command(arguments, prog_name=name, standalone_mode=False) or 0
    except InterpError as error:
        return _refused(str(error))
    except _USAGE_ERROR as error:
        return _refused(f"{error.format_message()} See {name} --help")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `interp list | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _said(code: int) -> int:
    """The code; an interruption is said once, however deep it was caught (Typer catches some by itself)."""
    if code == 130:
        print("interp: interrupted", file=sys.stderr)
    return code


def _refused(message: str) -> int:
    print("interp: " + " ".join(message.split()), file=sys.stderr)
    return 2


@app.command(
    "run",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE.py", help="An analysis by name, or a file with run(...).")
    ] = None,
    options: Annotated[list[str] | None, typer.Argument(metavar="[--option value]...", help="What the analysis takes.")] = None,
) -> int:
    """Answer one question: writes a page, its tables and summary.json. `interp run NAME --help` shows what NAME takes."""
    from interp import running

    if name in (None, "-h", "--help"):
        print(running.overview())
        return 0
    return running.run(str(name), options or [])


@app.command("list")
def list_command() -> None:
    """The analyses, the models that can be loaded here, and the families of models that capture certifies."""
    from rich.console import Console
    from rich.table import Table

    from interp import running
    from interp.families import by_status
    from interp.models import available

    console = Console(width=None if sys.stdout.isatty() else 160)
    families = [(f"{status} ({len(names)})", " ".join(names)) for status, names in by_status().items()]
    heads = {"analysis": "asks", "model": "here", "family": "causal LM types of transformers, as audited on tiny models"}
    for title, rows in zip(heads, (running.questions(), available(), families), strict=True):
        table = Table(title, heads[title], box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()


@app.command("capture")
def capture_command(
    text: Text_,
    out: Annotated[Path, typer.Option(help="The file to write (.safetensors).")],
    model: Model_ = "toy",
    bos: Bos = "keep",
    layers: Layers = None,
    max_tokens: MaxTokens = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    route: Annotated[str, typer.Option(help="auto, registry, operations, hooks.")] = "auto",
) -> None:
    """Q, K, V, scores, weights and z of one text, proved against the model, in one file."""
    made = _captured(text, model, bos, layers, max_tokens, dtype, device, route)
    with _writing(out):
        made.save(out)
    print(made)
    print(f"to see every head: interp view {shlex.quote(str(out))}")
    print(out)


@app.command("view")
def view_command(
    file: Annotated[Path | None, typer.Argument(help="A capture file, in place of --model and --text.")] = None,
    capture: Annotated[Path | None, typer.Option(help="The same file, named as `interp run` names it.")] = None,
    text: Annotated[str | None, typer.Option(help="One text, as it is.")] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("reports/view.html"),
    model: Model_ = "toy",
    bos: Bos = "keep",
    layers: Layers = None,
    max_tokens: MaxTokens = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """One offline page that shows every head from scores to mask to weights."""
    if sum(given is not None for given in (file, capture, text)) != 1:
        raise InterpError("view takes a capture file, or --model and --text; give one of the two")
    file = file or capture
    if file is not None:
        if layers is not None or max_tokens is not None:
            raise InterpError(
                f"view shows {file} as it was captured; --layers and --max-tokens go with --text, or with interp capture"
            )
        from interp.capturing import read

        made = read(file)
    else:
        made = _captured(str(text), model, bos, layers, max_tokens, dtype, device)
    from interp.report import view
    from interp.report.folder import listed

    page = view(made, title=f"{made.model or (file.stem if file else model)}: {' '.join(made.text.split())[:80] or 'attention'}")
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.partial")
        try:
            partial.write_text(page, encoding="utf-8", newline="")
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
        listed(out)
    if open_:
        typer.launch(str(out))
    print(out)


@app.command("audit")
def audit_command(
    model: Model_ = "toy",
    texts: Annotated[list[str] | None, typer.Option("--texts", help=".txt, .jsonl, .csv, .parquet, a glob, or -.")] = None,
    bos: Bos = "keep",
    max_tokens: MaxTokens = None,
    limit: Annotated[int | None, typer.Option(help="At most so many texts.")] = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="The table as JSON.")] = False,
) -> int:
    """Is what is captured what the model computed? A table of checks; exit 1 where one fails."""
    from interp.capturing.audit import audit
    from interp.running import source_of

    report = audit(model, source_of(texts), bos=bos, max_tokens=max_tokens, limit=limit, dtype=dtype, device=device)
    print(report.json() if json else report.table())
    return 0 if report.passed else 1


def _captured(
    text: str, model: str, bos: str, layers: str | None, max_tokens: int | None, dtype: str, device: str, route: Any = "auto"
) -> Any:
    import interp
    from interp.running import layer_numbers

    loaded = interp.load(model, dtype=dtype, device=device)
    wanted = None if layers is None else layer_numbers(layers)
    return interp.capture(loaded, text, wanted, bos, route=route, max_tokens=max_tokens)


class _writing:
    """A block whose failure to write is bad input, named with the path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise InterpError(f"cannot write {self._path}: {error.strerror or error}") from None


def analysis_main(run: Any) -> None:
    """`python -m analyses.NAME …` and `python FILE.py …`: the same as `interp run`."""
    from interp import running

    home = run.__globals__
    name = home["__spec__"].name.rpartition(".")[2] if home.get("__spec__") else Path(home["__file__"]).stem
    sys.exit(_said(call(running.command(name, run), sys.argv[1:], name=name)))
