"""The model class of lm-evaluation-harness, against the harness's own over transformers, where it is installed."""

import json
import math

import pytest
import torch
import transformers

from genwright import LLM
from genwright.text.settings import EngineConfig

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is ", "Rome"),
    ("", "Once upon a time"),
    ("Two and two are", " four, and three and three are six."),
]
TASK = """
task: tiny_capitals
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def both(smollm2):
    from lm_eval.models.huggingface import HFLM

    from genwright.bench.harness import HarnessModel

    llm = LLM(smollm2, device="cpu", dtype="float32", max_context=130)
    files = {"gguf_file": smollm2.name, "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, **files)
    words = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    # Our window is one token shorter than the context, and a harness's window predicts as many tokens as it reads.
    theirs = HFLM(pretrained=model, tokenizer=words, device="cpu", max_length=128, batch_size=1)
    return HarnessModel(llm), theirs


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def test_likelihoods_of_continuations(both):
    ours, theirs = (model.loglikelihood(instances("loglikelihood", PAIRS)) for model in both)
    for (value, greedy), (wanted, wanted_greedy) in zip(ours, theirs, strict=True):
        assert value == pytest.approx(wanted, abs=1e-3)
        assert greedy == wanted_greedy
    assert ours[0][1] and not ours[2][1]


def test_rolling_likelihoods_of_texts_longer_than_the_context(both):
    texts = [("A short one.",), (" ".join(f"Line {n} of a long text." for n in range(60)),)]
    ours, theirs = (model.loglikelihood_rolling(instances("loglikelihood_rolling", texts)) for model in both)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert all(math.isfinite(value) for value in ours)


def test_answers_until_a_stop(both):
    settings = {"until": ["\n", "."], "max_gen_toks": 12, "do_sample": False}
    asked = [("Question: What is the capital of France?\nAnswer:", settings), ("One, two, three,", settings)]
    ours, theirs = (model.generate_until(instances("generate_until", asked)) for model in both)
    assert ours == theirs


def test_a_task_of_ones_own_from_the_command_line(tmp_path, smollm2, capsys):
    from genwright.cli.eval import evaluate

    rows = [("France", ["Rome", "Paris"], 1), ("Italy", ["Rome", "Paris"], 0), ("England", ["Oslo", "London"], 1)]
    lines = [json.dumps({"country": a, "choices": [f" {c}" for c in b], "answer": n}) for a, b, n in rows]
    (tmp_path / "data.json").write_text("\n".join(lines))
    (tmp_path / "tiny_capitals.yaml").write_text(TASK.format(data=tmp_path / "data.json"))
    torch.manual_seed(0)
    options = vars(EngineConfig(device="cpu")) | {"model": str(smollm2), "text": None, "window": None, "stride": None}
    evaluate(**options, tasks="tiny_capitals", task_folder=tmp_path, limit=None, as_json=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["tasks"]["tiny_capitals"]["acc,none"] == 1.0
