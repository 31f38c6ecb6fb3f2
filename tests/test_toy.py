"""The toy: its task, the course of its training, and the copy in the cache."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import interp
from interp import cache
from interp.errors import InterpError
from interp.models import toy as toys

PREFIX = "The team colour is red. So the players wear"


@pytest.fixture(scope="module")
def course():
    return toys.train()


def test_the_task_is_the_chapters():
    every = toys.prefixes()
    learned = [prefix for prefix in every if not prefix.validation]
    encode = toys.WordTokenizer().encode
    assert (len(learned), len(every) - len(learned), len(toys.WORDS)) == (9, 3, 17)
    assert {len(encode(prefix.text)) for prefix in learned} == {10, 15, 16}
    assert {len(encode(prefix.text)) for prefix in every if prefix.validation} == {21}
    assert all(encode(prefix.text)[toys.COLOUR_AT] == toys.WORDS.index(prefix.target) for prefix in every)


def test_words_are_read_back_and_others_refused():
    tokenizer = toys.WordTokenizer()
    assert tokenizer.decode(tokenizer.encode(PREFIX)) == PREFIX
    with pytest.raises(InterpError, match="'green' is none of the 17 words of this model: The team"):
        tokenizer.encode("The team colour is green.")
    with pytest.raises(InterpError, match="no word has id 17; ids run from 0 to 16"):
        tokenizer.decode([17])


def test_the_course_is_like_the_chapters(course):
    """Near 0.1 everywhere at first, off the colour at update 10, most of it on the colour by 30, all of it by 50, 3 of 3."""
    row = course.rows[:, 0]
    colour, others = row[:, toys.COLOUR_AT], torch.cat([row[:, : toys.COLOUR_AT], row[:, toys.COLOUR_AT + 1 :]], 1).amax(1)
    p_red = course.log_p[:, 0, toys.WORDS.index("red")].exp()
    right = course.correct[:, [prefix.validation for prefix in toys.prefixes()]].sum(1)
    assert abs(float(colour[0]) - 0.1) < 0.01
    assert abs(float(p_red[0]) - 1 / 17) < 0.005
    assert right[0] == 0
    assert colour[10] < colour[0] < others[10]
    assert colour[30] > 0.5
    assert right[30] == 3
    assert round(float(colour[50]), 3) == round(float(colour[200]), 3) == 1.000
    assert round(float(p_red[50]), 3) == 1.000
    assert right[50] == right[200] == 3
    assert float(course.losses[200].max()) < 5e-4


def test_the_same_seed_gives_the_same_model_and_many_at_once_give_each(course):
    together = toys.courses([7, toys.DEFAULT_SEED], updates=20)
    alone = toys.courses([toys.DEFAULT_SEED], updates=20)[0]
    assert torch.equal(alone.rows, course.rows[:21])
    torch.testing.assert_close(together[1].rows, alone.rows, atol=1e-5, rtol=0)
    assert not torch.allclose(together[0].rows, alone.rows)
    with pytest.raises(InterpError, match="at least one seed and one update; got 0 and 200"):
        toys.courses([])


def test_the_cache_keeps_it_and_a_damaged_copy_is_made_anew(monkeypatch, tmp_path, course):
    trained = []
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path))
    monkeypatch.setattr(toys, "train", lambda seed: trained.append(seed) or course)
    first, _ = toys.load()
    (file,) = (cache.cache_dir() / "toy").rglob("*.safetensors")
    second, _ = toys.load()
    assert trained == [toys.DEFAULT_SEED]
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))

    whole = {name: tensor.clone() for name, tensor in load_file(file).items()}
    not_a_number = whole | {"W_E": whole["W_E"] * torch.nan}
    for harm in (
        lambda: file.write_bytes(file.read_bytes()[:100]),
        lambda: save_file(whole, file, {"recipe": "another"}),
        lambda: save_file(not_a_number, file, toys._recipe()),
    ):
        harm()
        toys.load()
        assert torch.equal(load_file(file)["W_E"], whole["W_E"])
    assert len(trained) == 4
    assert [path.name for path in file.parent.parent.iterdir()] == [file.parent.name]


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path, course):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(toys, "train", lambda seed: course)
    assert toys.load()[0].cfg.n_layers == 1


def test_capture_proves_itself_on_it_and_the_start_is_another_model(toy, course):
    made = interp.capture(toy, PREFIX)
    assert [tuple(getattr(made, name).shape) for name in ("q", "k", "v", "weights")] == [
        (1, 1, 10, 4), (1, 1, 10, 4), (1, 1, 10, 8), (1, 1, 10, 10),
    ]  # fmt: skip
    torch.testing.assert_close(made.weights[0, 0, -1], course.rows[-1, 0, :10], atol=1e-5, rtol=0)
    start = course.module(end=False)
    assert not torch.equal(start.W_E, course.module().W_E)
    ids = torch.tensor([toys.WordTokenizer().encode(PREFIX)])
    torch.testing.assert_close(start(ids)[0, -1].log_softmax(-1), course.log_p[0, 0], atol=1e-6, rtol=0)
