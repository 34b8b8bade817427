"""The report of a placed run: times, bytes moved and peaks, beside a prediction."""

import json

import pytest
import transformers
from text.families import make

from genwright import LLM, SamplingParams
from genwright.cli.generate import app
from genwright.errors import GenwrightWarning, UserError
from genwright.placement.tiers import Tier

PARAMS = SamplingParams(max_new_tokens=5, ignore_eos=True)
PROMPTS = [[3, 4, 5, 6], [7, 8]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    make("llama", path)
    return path


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory):
    """24 blocks of 0.14 MB, so that buffers for two of them are small beside all."""
    path = tmp_path_factory.mktemp("deep")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 199}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=24, max_position_embeddings=512)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_a_placed_run_is_measured(folder, tmp_path):
    with LLM(folder, device="cpu", dtype="float32", offload="0,50,100,0,0,100", offload_dir=tmp_path) as llm:
        llm.generate(PROMPTS, PARAMS)
        meter = llm.meter()
        report = meter.report(llm.generate(PROMPTS, PARAMS))
        whole = llm.engine.executor.tiers.use.moved
    timing = report.measured
    assert (timing.sequences, timing.prompt_length, timing.max_new_tokens) == (2, 3, 5)
    assert 0 < timing.prefill_seconds < timing.seconds <= report.seconds
    assert 0 < report.moved["CPU to memory"] < whole[Tier.CPU, Tier.GPU]
    assert report.moved["disk to memory"] > 0 and set(report.peak) == {"memory", "CPU", "disk"}
    assert report.bus_share is None and report.predicted is None
    assert report.tokens == 10 and report.rate == 10 / report.seconds
    found = report.as_json()
    assert json.loads(json.dumps(found))["measured"]["decode_rate"] == timing.decode_rate
    assert [line.split()[0] for line in report.lines()] == ["Placement:", "Prefill", "Moved:", "Peak"]
    assert [line.split()[0] for line in meter.report().lines()] == ["Placement:", "Moved:", "Peak"]


def test_a_resident_model_has_no_meter(folder):
    with LLM(folder, device="cpu", dtype="float32") as llm:
        assert llm.meter() is None


@pytest.mark.parametrize(("memory", "resident"), [("1GB", True), ("2.5MB", False)])
def test_auto_plans_the_placement(deep_folder, memory, resident, tmp_path, monkeypatch):
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path))
    told = []
    settings = {"offload": "auto", "cpu_mem": memory, "gpu_mem": 1, "max_context": 128, "tell": told.append}
    with pytest.warns(GenwrightWarning) as warned:
        llm = LLM(deep_folder, device="cpu", dtype="float32", **settings)
    assert [str(each.message) for each in warned] == [
        "gpu_mem has no effect without a GPU; cpu_mem limits main memory."
    ]
    with llm, LLM(deep_folder, device="cpu") as truth:
        assert (llm.config.offload is None) == resident
        assert told[-1].startswith("The model fits" if resident else "Placement: weights")
        results = llm.generate(PROMPTS, PARAMS)
        assert [each.ids for each in results] == [each.ids for each in truth.generate(PROMPTS, PARAMS)]
        if not resident:
            report = llm.meter().report(results)
            assert report.predicted.prompt_length == 3 and "predicted" in report.lines()[-1]
            assert report.bus_share is None, "there is no bus"


def test_the_command_writes_a_report(folder, tmp_path, capfd):
    command = ["--model", str(folder), "--prompt-length", "9", "--max-new-tokens", "3", "--device", "cpu"]
    path = tmp_path / "report.json"
    with pytest.raises(UserError, match="pass --offload"):
        app([*command, "--report", str(path)], standalone_mode=False)
    app([*command, "--report", str(path), "--offload", "0,100,100,0,100,0"], standalone_mode=False)
    assert "Moved:" in capfd.readouterr().err
    assert json.loads(path.read_text())["policy"].startswith("weights 100% CPU")


def test_a_job_has_a_report_with_its_rate(folder, tmp_path, capfd):
    prompts, out, path = (tmp_path / name for name in ("prompts.jsonl", "results.jsonl", "report.json"))
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    command = ["--model", str(folder), "--device", "cpu", "--offload", "0,100,100,0,100,0", "--max-new-tokens", "5"]
    command += ["--ignore-eos", "--prompts", str(prompts), "--out", str(out)]
    app([*command, "--report", str(path)], standalone_mode=False)
    assert "10 tokens in " in capfd.readouterr().err
    found = json.loads(path.read_text())
    assert found["tokens"] == 10 and found["rate"] == 10 / found["seconds"]
    for taken in (prompts, out):
        before = taken.read_text()
        with pytest.raises(UserError, match=r"--report would overwrite .*; name another file\.$"):
            app([*command, "--report", str(taken)], standalone_mode=False)
        assert taken.read_text() == before
    with pytest.raises(UserError, match=r"There is no folder .* to write report\.json to\.$"):
        app([*command, "--report", str(tmp_path / "none" / "report.json")], standalone_mode=False)
