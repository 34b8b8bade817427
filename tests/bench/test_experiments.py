"""The registry: what can be measured, and what may be changed about it."""

import pytest

from genwright.bench.experiments import DEFAULTS, EXPERIMENTS, Point, Traffic, adapt, choose
from genwright.errors import UserError
from genwright.quant.formats import parse_format
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.settings import EngineConfig


def test_pytorchs_three_experiments_have_its_targets():
    targets = {
        name: list(each.target.figures().values()) for name, each in EXPERIMENTS.items() if each.target is not None
    }
    assert targets == {
        "llama2_7b_bf16": [94, 1253, 162],
        "llama2_7b_int8": [144, 957, 172],
        "mixtral_8x7b_int8": [175, 1130, 162],
    }
    assert all(EXPERIMENTS[name].points == (Point(1, 6, 200),) and EXPERIMENTS[name].samples == 5 for name in targets)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_set_up(name):
    each = EXPERIMENTS[name]
    if each.model.startswith("random:"):
        assert each.context <= open_checkpoint(each.model).config.max_context
    assert each.device in DEFAULTS
    if each.config.quant is not None:
        parse_format(each.config.quant)


def test_names_models_and_mistakes():
    assert tuple(each.name for each in choose((), "cpu")) == DEFAULTS["cpu"]
    found = choose(["random:stories15m", "/no/such/model"], "cuda")
    assert [(each.model, each.device) for each in found] == [("random:stories15m", "cuda"), ("/no/such/model", "cuda")]
    with pytest.raises(UserError, match="did you mean 'llama2_7b_int8'"):
        choose(["llama2_7b_int9"], "cpu")


def test_batches_and_lengths_multiply():
    found = adapt(EXPERIMENTS["tinyllama_1b"], {"device": "cuda", "kv": "int8"}, [1, 4], [6, 100], 20, 2)
    assert [(p.batch, p.prompt, p.new) for p in found.points] == [(1, 6, 20), (4, 6, 20), (1, 100, 20), (4, 100, 20)]
    assert (found.config, found.samples) == (EngineConfig(device="cuda", kv="int8"), 2)
    assert adapt(found, {}) == found


def test_traffic_takes_sizes_and_rates():
    found = adapt(EXPERIMENTS["smollm2_serving"], {}, [8], None, 20, 1, [2.0, 3.0])
    ranges = (16, 256), (20, 20)
    assert found.points == (Traffic(8, *ranges), Traffic(8, *ranges, rate=2.0), Traffic(8, *ranges, rate=3.0))
    assert adapt(EXPERIMENTS["llama3_8b_serving"], {}, prompt=[100]).points == (
        Traffic(512, (100, 100), (32, 256)),
        Traffic(512, (100, 100), (32, 256), share=0.6),
    )
    assert [str(point) for point in found.points[:2]] == ["8 requests at once", "8 requests at 2/s"]
