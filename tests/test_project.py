"""The project as a newcomer meets it: the wheel, the README's own code, what importing costs, and what no file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import interp
from interp import running

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository; without git, of its source folders."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_importing_costs_no_torch():
    code = "import sys, interp, interp.cli; print({'torch', 'transformers', 'pandas', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_every_public_name_is_there():
    assert len(interp.__all__) <= 20
    assert interp.__all__ == sorted(interp.__all__)
    for name in interp.__all__:
        assert getattr(interp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'captrue'"):
        _ = interp.captrue


def test_the_wheel_holds_what_runs_need(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path), str(ROOT)]
    source = tmp_path / "source"
    for path in tracked("pyproject.toml", "README.md", "LICENSE", "interp", "analyses"):
        (target := source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    subprocess.run([*build[:-1], str(source)], check=True, capture_output=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for path in tracked("interp", "analyses"):
        name = path.relative_to(ROOT).as_posix()
        assert name in held, name
    assert not any(name.startswith(("tests/", "benchmarks/", "notebooks/")) for name in held)


def test_the_readmes_python_runs(smollm2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 8
    exec("\n".join(blocks), {})
    assert "From the fourth token on, heads of smollm2 put" in capsys.readouterr().out


def test_the_readme_names_each_analysis_and_no_other():
    assert set(re.findall(r"^\| `([a-z0-9_]+)` \|", README, flags=re.MULTILINE)) == {name for name, _ in running.questions()}


def test_the_readmes_commands_are_understood():
    commands = [line.partition("#")[0].split() for line in README.splitlines() if line.startswith("interp ")]
    assert len(commands) > 6
    known = {"run", "list", "audit", "capture", "view"}
    for words in commands:
        assert words[1] in known, words
        if words[1] == "run":
            takes = running.command(words[2], running.find(words[2])).takes  # type: ignore[attr-defined]
            assert {word for word in words if word.startswith("--")} <= set(takes), words
    assert all((ROOT / target).exists() for target in re.findall(r"\]\(([^)#:]+)\)", README))


@pytest.mark.parametrize("question", running.questions(), ids=lambda pair: pair[0])
def test_every_analysis_asks_a_question(question):
    assert "?" in question[1]
    assert len(question[1]) < 160


def test_no_file_is_too_long_to_read():
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 300 and "tests" not in path.parts
    }
    assert not long


def test_every_module_says_what_it_is():
    for path in tracked("interp/*.py", "analyses/*.py", "tests/*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or not path.stat().st_size, path


def test_no_path_of_one_machine_and_no_address_with_a_password():
    found = []
    homes = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp)/(?!somebody|me\b)[\w.-]+|https?://[^/\s\"']+:[^/\s\"'@]+@")
    for path in tracked():
        if path.suffix not in {".png", ".safetensors", ".parquet"} and path != Path(__file__).resolve():
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in homes.finditer(path.read_text(encoding="utf-8"))]
    assert not found
