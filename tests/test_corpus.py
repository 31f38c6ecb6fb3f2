"""Corpora: every kind of file read alike, bad lines named or counted, nothing held in memory, samples by seed."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from interp import corpus
from interp.corpus import Text, texts
from interp.errors import InterpError

SAID = ["One text.", 'Two, with "quotes", a comma and é🤗.', "=3"]


def _write(folder: Path, kind: str) -> Path:
    path = folder / f"corpus{kind}"
    if kind == ".txt":
        path.write_text("\ufeff" + "\r\n\n".join(SAID) + "\n", encoding="utf-8", newline="")
    elif kind == ".jsonl":
        path.write_text("\n".join(json.dumps({"id": 1, "text": text}) for text in SAID), encoding="utf-8")
    elif kind == ".csv":
        pd.DataFrame({"id": 1, "text": SAID}).to_csv(path, index=False)
    else:
        pd.DataFrame({"id": 1, "text": SAID}).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".parquet"])
def test_every_kind_gives_the_same_texts(tmp_path, kind):
    path = _write(tmp_path, kind)
    for source in (path, str(path), [path], str(tmp_path / "corp*")):
        assert [text.text for text in texts(source)] == SAID
    assert [text.text for text in texts(path, limit=2)] == SAID[:2]


def test_where_a_text_stood(tmp_path):
    assert [text.source for text in texts(_write(tmp_path, ".txt"))] == ["corpus.txt:1", "corpus.txt:3", "corpus.txt:5"]
    assert [text.name for text in texts(_write(tmp_path, ".parquet"))] == [
        "corpus.parquet:1",
        "corpus.parquet:2",
        "corpus.parquet:3",
    ]


def test_stdin(monkeypatch, tmp_path):
    (tmp_path / "said").write_text("a b\n\nç\n", encoding="utf-8")
    with (tmp_path / "said").open(encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert [(text.text, text.source) for text in texts("-")] == [("a b", "stdin:1"), ("ç", "stdin:3")]


def test_several_files_and_plain_texts(tmp_path):
    one, other = _write(tmp_path, ".txt"), _write(tmp_path, ".jsonl")
    assert [text.text for text in texts([one, other])] == [*SAID, *SAID]
    assert [text.text for text in texts(["a", Text("b", "b", "b"), "c"])] == ["a", "b", "c"]
    with pytest.raises(InterpError, match=r"is taken as a text, but a file of that name is there; give Path\("):
        list(texts([str(one)]))


BAD = {
    ".txt": (b"good\n\xff\xfe\nalso good\n", 2, "byte 1 of the line is not UTF-8"),
    ".jsonl": (b'{"text": "good"}\n\n{"text": "go\n{"text": "also good"}\n', 3, "not JSON"),
    ".csv": (b'id,text\n1,good\n2\n3,"also good"\n', 3, "the row ends before the column 'text'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_or_counted(tmp_path, kind):
    content, number, why = BAD[kind]
    path = tmp_path / f"corpus{kind}"
    path.write_bytes(content)
    with pytest.raises(InterpError, match=f"corpus{kind}:{number}: {why}"):
        list(texts(path))
    skipping = texts(path, skip_bad=True)
    assert [text.text for text in skipping] == ["good", "also good"]
    assert len(skipping.skipped) == 1
    assert f"corpus{kind}:{number}: {why}" in skipping.skipped[0]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('["text"]', "no object with a field 'text'"),
        ('{"body": "x"}', "no object with a field 'text'"),
        ('{"text": 5}', "its 'text' is int, not a string"),
        ('{"text": null}', "its 'text' is null, not a string"),
        ('{"text": " "}', "its 'text' is empty"),
        ('{"text": "\\ud800"}', "lone surrogate"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_lines_that_are_json_but_no_text(tmp_path, line, why):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(InterpError, match=f"a.jsonl:1: .*{why}"):
        list(texts(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"id,body\n1,x\n", "a.csv: the first line names no column 'text'"),
        ("a.parquet", b"no parquet at all", "a.parquet: not a parquet file"),
        ("a.xml", b"<a/>", r"a.xml is of no kind that is read here; give .txt, .jsonl, .csv, .parquet, or - for stdin"),
        ("a.txt", b"\n \n", "no texts in .*a.txt; give at least one"),
        ("gone/x.txt", None, "no file .*x.txt; give .txt"),
        ("gone/*.txt", None, r"no file .*\*.txt; give .txt"),
        ("", None, r"is a folder; name its files with a glob: '.*/\*.jsonl'"),
    ],
)
def test_files_that_are_no_corpus(tmp_path, name, content, why):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InterpError, match=why):
        list(texts(str(tmp_path / name)))


@pytest.mark.parametrize("options", [{"limit": 0}, {"sample": 0}])
def test_counts_that_leave_nothing(options):
    with pytest.raises(InterpError, match="0 leaves no text"):
        texts(None, **options)


def test_all_bad_lines_are_no_texts(tmp_path):
    (tmp_path / "a.jsonl").write_text("x\ny\n")
    with pytest.raises(InterpError, match=r"no texts in .*2 bad lines were skipped; the first: .*a.jsonl:1"):
        list(texts(tmp_path / "a.jsonl", skip_bad=True))


def test_a_line_too_long_is_bad_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("interp.readers.LONGEST", 1024)
    (tmp_path / "a.txt").write_bytes(b"x" * 5000 + b"\nshort\n")
    assert [text.text for text in texts(tmp_path / "a.txt", skip_bad=True)] == ["short"]


@pytest.mark.parametrize("kind", [".txt", ".csv"])
def test_a_large_file_does_not_enter_memory(tmp_path, kind):
    path = tmp_path / f"big{kind}"
    with path.open("w") as stream:
        stream.write("text\n")
        for _ in range(100):
            stream.write(("word " * 1000 + "\n") * 20)
    assert path.stat().st_size >= 10_000_000
    tracemalloc.start()
    count = sum(1 for _ in texts(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_000 + (kind == ".txt")
    assert peak < 1_000_000


def test_a_sample_is_seeded_even_and_in_order():
    source = [str(number) for number in range(10)]
    drawn = [[text.text for text in texts(source, sample=3, seed=seed)] for seed in range(600)]
    assert drawn == [[text.text for text in texts(source, sample=3, seed=seed)] for seed in range(600)]
    assert all(one == sorted(one) and len(set(one)) == 3 for one in drawn)
    counts = Counter(text for one in drawn for text in one)
    # 600 draws of 3 in 10: each text 180 times, standard deviation 11.2; five of them either side.
    assert all(124 < counts[text] < 236 for text in source)
    assert [text.text for text in texts(source, sample=99)] == source


def test_built_in_passages_are_long_enough(smollm2):
    passages = corpus.passages()
    assert 20 <= len(passages) <= 30
    assert len({text.text for text in passages}) == len(passages)
    lengths = {text.name: len(smollm2.tokens(text.text, "none")) for text in passages}
    assert min(lengths.values()) >= 80, lengths
    assert list(texts(None)) == passages


def test_the_chapters_sentences():
    assert [text.text for text in corpus.sentences()][:2] == [
        "When Mary and John went to the store, John gave a drink to",
        "The dog chased the cat.",
    ]
