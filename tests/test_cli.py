"""The command from end to end: exit codes, one line for bad input, nothing written by what was refused, the analyses' own options."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from interp import cli, running
from interp.errors import InterpError

COLOUR = "The team colour is red. So the players wear"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of one command."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def tiny_gpt2():
    """One layer, sixteen positions, random weights, no tokenizer: texts are ids."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )


BAD = {
    "unknown model": ("run sinks --model ./nowhere", "no folder ./nowhere; give a transformers folder, a hub id"),
    "no model name": ("run sinks --model a//b:c", "no "),
    "unknown analysis": ("run sink", "no analysis 'sink'; nearest: sinks"),
    "file that is not there": ("run ./mine.py", "no file mine.py; give the path of an analysis"),
    "unknown layer": ("run sinks --layers 5", "5"),
    "layers not understood": ("run sinks --layers a-b", "layers 'a-b' are not understood; write 0,3-5"),
    "empty text": ("run sinks --texts empty.txt", "no texts in empty.txt; give at least one"),
    "text too long": ("run sinks --model ./small --texts long.txt", "20 tokens, but small has 16 positions; "),
    "folder without weights": ("run sinks --model ./bare", "bare"),
    "unreadable capture": ("run sinks --capture broken.safetensors", "broken.safetensors"),
    "capture that is not there": ("run sinks --capture gone.safetensors", "gone.safetensors"),
    "line that is not JSON": ("run sinks --texts bad.jsonl", "bad.jsonl:2: not JSON"),
    "other kind of texts": ("run sinks --texts bare/config.json", "is of no kind that is read here"),
    "unknown option": ("run sinks --colour red", "takes no --colour; it takes --model, --texts, --capture"),
    "capture beside a model": (
        "run sinks --model smollm2 --capture broken.safetensors",
        "--capture brings its own model and text",
    ),
    "several models where one is read": ("run ratio_rule --model toy,smollm2", "ratio_rule takes one model; got toy,smollm2"),
    "bos": ("run sinks --bos maybe", "bos='maybe'; give one of keep, add, none"),
    "dtype": ("run sinks --dtype float17", "no dtype 'float17'; nearest: float16"),
    "number": ("run sinks --limit many", "Invalid value for '--limit'"),
    "view of nothing": ("view --out page.html", "view takes a capture file, or --model and --text; give one of the two"),
    "capture of an empty text": ("capture --text  --out c.safetensors", "no tokens"),
    "layers that run backwards": ("run sinks --layers 3-1", "layers '3-1' run backwards; write 1-3"),
    "view of a folder": ("view --text The --out bare", "cannot write bare"),
    "layers of a capture": ("view broken.safetensors --layers 0", "view shows broken.safetensors as it was captured"),
    "no updates": ("run causal_mask --updates -1", "training needs at least one start and one update; got 1 and -1"),
    "no starts": ("run one_layer_limits --starts 0", "training needs at least one start and one update; got 0 and"),
    "left out and unknown": ("run textbook --skip nothing", "no analysis 'nothing'"),
    "no pieces": ("run pruning --limit 0", "limit 0; give 1 or more"),
    "no pieces of a resting spot": ("run resting_spot --limit 0", "limit 0; give 1 or more"),
    "no steps": ("run pruning --steps 0", "steps 0; give 1 or more"),
    "every none": ("run pruning --every 0", "every 0; give 1 or more"),
    "no period": ("run heads --period 0", "period 0; give 2 or more"),
    "no tokens": ("run sinks --max-tokens -4", "max_tokens -4; give 1 or more"),
    "texts that would not be read": ("run pruning --texts empty.txt", "toy is tried on its own prefixes and their answers"),
    "out that is taken, said before the model is read": ("run sinks --model ./nowhere --out bare", "bare holds something else"),
    "out that cannot be": ("run sinks --model ./nowhere --out bad.jsonl/made", "cannot write the report to bad.jsonl/made"),
    "empty model name": ("run sinks --model ", "no model name; give toy, smollm2, a hub id"),
    "unknown command": ("ruun sinks", "ruun"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(here, capsys, case):
    line, message = BAD[case]
    (here / "empty.txt").write_text("\n \n")
    (here / "long.txt").write_text("1 " * 20)
    (here / "bad.jsonl").write_text('{"text": "The team colour is red."}\n{"text": \n')
    (here / "broken.safetensors").write_bytes(b"no safetensors at all")
    (here / "bare").mkdir()
    (here / "bare" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4}')
    if "./small" in line:
        tiny_gpt2().save_pretrained(here / "small")
        capsys.readouterr()  # transformers' own progress
    before = sorted(here.rglob("*"))
    apart = "--text " in line or line.endswith(" ")  # an argument that is empty counts
    code, out, err = call(capsys, *line.split(" ") if apart else line.split())
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("interp: ")
    assert err.count("\n") == 1, err
    assert message in err
    assert sorted(here.rglob("*")) == before


def test_a_run_writes_a_page_and_says_where(here, capsys):
    code, out, err = call(capsys, "run", "sinks", "--limit", "2", "--out", "made")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(Path("made/index.html"))
    assert json.loads((here / "made" / "summary.json").read_text())["numbers"]["texts"] == 2
    assert {"heads.csv", "positions.csv", "texts.csv"} <= {file.name for file in (here / "made").iterdir()}
    assert "interp run sinks --limit 2" in (here / "made" / "index.html").read_text(encoding="utf-8")


def test_by_path_by_module_and_by_name_it_is_the_same(here, capsys):
    code, _, _ = call(capsys, "run", "sinks", "--limit", "1", "--out", "named")
    path = Path(running.__file__).parents[1] / "analyses" / "sinks.py"
    assert code == call(capsys, "run", str(path), "--limit", "1", "--out", "path")[0] == 0
    module = [sys.executable, "-m", "analyses.sinks", "--limit", "1", "--out", "module"]
    assert subprocess.run(module, capture_output=True, check=True, text=True).stdout.endswith("module/index.html\n")
    tables = [(here / name / "heads.csv").read_bytes() for name in ("named", "path", "module")]
    assert tables[0] == tables[1] == tables[2]


def test_an_analysis_of_ones_own(here, capsys):
    (here / "mine.py").write_text(
        '"""How many layers?"""\nfrom interp import Report, load\n\n'
        "def run(model='toy', *, sizes=(1, 2), loud: bool = False):\n"
        "    n = load(model).n_layers\n"
        "    return Report('mine', model, 'How many layers?', f'{n} of them {sizes} {loud}.', {'layers': n})\n"
    )
    code, out, _ = call(capsys, "run", "./mine.py", "--sizes", "3,5", "--loud")
    assert code == 0
    assert out.splitlines() == ["1 of them [3, 5] True.", str(Path("reports/mine-toy/index.html"))]
    (here / "empty.py").write_text("")
    assert "has no function run(...)" in call(capsys, "run", "empty.py")[2]


def test_a_defect_keeps_its_traceback(here):
    (here / "mine.py").write_text("def run():\n    return 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", "mine.py"])


def test_interruption_is_130(here, capsys):
    (here / "mine.py").write_text("def run():\n    raise KeyboardInterrupt\n")
    code, _, err = call(capsys, "run", "mine.py")
    assert (code, err) == (130, "interp: interrupted\n")


def test_capture_view_and_recordings(here, capsys):
    code, out, _ = call(capsys, "capture", "--text", COLOUR, "--out", "c.safetensors")
    assert code == 0
    assert out.splitlines()[-1] == "c.safetensors"
    assert "\nto see every head: interp view c.safetensors\n" in out
    assert call(capsys, "view", "c.safetensors", "--out", "deep/c.html")[0] == 0
    assert call(capsys, "view", "--capture", "c.safetensors", "--out", "same.html")[0] == 0
    assert Path("same.html").read_bytes() == Path("deep/c.html").read_bytes()
    assert (here / "deep" / "c.html").stat().st_size > 1000
    code, out, _ = call(capsys, "run", "ratio_rule", "--capture", "c.safetensors", "--out", "rule")
    assert code == 0
    assert out.startswith("Yes")


def test_the_command_on_a_page_writes_the_page_again(here, capsys):
    call(capsys, "run", "soft_lookup", "--query", "2,0", "--keys", "1,0; 0,-1", "--out", "first")
    first = {file.name: file.read_bytes() for file in (here / "first").iterdir()}
    shown = re.search(r'<pre class="command"[^>]*><code>(.*?)</code>', first["index.html"].decode(), re.DOTALL)
    words = shlex.split(html.unescape(shown[1]))
    assert words[:3] == ["interp", "run", "soft_lookup"]
    call(capsys, *words[1:])
    assert {file.name: file.read_bytes() for file in (here / "reports/soft-lookup-by-hand").iterdir()} == first


def test_refused_writing_is_bad_input(here, capsys):
    (here / "file").write_text("")
    code, _, err = call(capsys, "capture", "--text", COLOUR, "--out", "file/c.safetensors")
    assert (code, err.count("\n")) == (2, 1)
    assert "c.safetensors" in err


def test_lists(here, capsys):
    code, out, _ = call(capsys, "list")
    assert code == 0
    for word in ("sinks", "ratio_rule", "toy", "smollm2"):
        assert word in out
    code, out, _ = call(capsys, "run")
    assert code == 0
    assert "How much of their attention do heads rest on the first token?" in out
    code, out, _ = call(capsys, "run", "sinks", "--help")
    assert code == 0
    assert "--protocol" in out


def test_layer_numbers():
    assert running.layer_numbers("0, 2-4") == [0, 2, 3, 4]
    with pytest.raises(InterpError, match="write 0,3-5"):
        running.layer_numbers("1-")
