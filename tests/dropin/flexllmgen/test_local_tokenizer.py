"""The tokenizer of a model's folder, called as transformers' own."""

from pathlib import Path

import pytest
import transformers

from genwright.errors import UserError

TEXTS = ["Paris is the capital city of", "\n", "a" * 40]


def test_ids_and_texts_are_those_of_transformers(tiny) -> None:
    from flexllmgen.local_tokenizer import LocalTokenizer, find_tokenizer

    ours = find_tokenizer("facebook/opt-125m", str(tiny.path))
    theirs = transformers.AutoTokenizer.from_pretrained(tiny.path / "opt-125m-np", padding_side="left")
    assert isinstance(ours, LocalTokenizer)
    assert ours(TEXTS[0]).input_ids == theirs(TEXTS[0]).input_ids
    rows = ours(TEXTS, padding="max_length", max_length=32).input_ids
    assert rows == theirs(TEXTS, padding="max_length", max_length=32).input_ids
    for skip in (True, False):
        assert ours.batch_decode(rows, skip_special_tokens=skip) == theirs.batch_decode(rows, skip_special_tokens=skip)
    ours.add_bos_token = False
    assert ours(TEXTS[0]).input_ids == theirs(TEXTS[0]).input_ids[1:]


def test_a_missing_tokenizer_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flexllmgen.local_tokenizer import find_tokenizer

    def no_network(name: str, **options: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", no_network)
    with pytest.raises(UserError, match=r"put its files .* in .*opt-1\.3b-np"):
        find_tokenizer("facebook/opt-1.3b", str(tmp_path))
