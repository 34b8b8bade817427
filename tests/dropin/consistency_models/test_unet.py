"""UNetModel: the UNet of our own config, its first weights, precision and recomputation."""

import pytest
import torch
from dropin.consistency_models.tiny import CONFIG

from genwright.errors import UserError
from genwright.images.model.unet import UNet, new_unet


def new_model(**changes):
    from cm.unet import UNetModel

    settings = {"attention_resolutions": (2, 0, 5), "channel_mult": (1, 2), "num_head_channels": 32}
    settings |= {"resblock_updown": True, "use_scale_shift_norm": True} | changes
    return UNetModel(16, 3, 32, 3, 1, **settings)


def test_the_network_is_ours() -> None:
    torch.manual_seed(3)
    model, ours = new_model(), new_unet(CONFIG, seed=3)
    state = ours.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    x, t = torch.randn(2, 3, 16, 16), torch.tensor([1.0, 5.0])
    assert torch.equal(model(x, t), torch.zeros_like(x))  # the last layer starts at 0
    torch.nn.init.normal_(model.out[2].weight)
    ours.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x, t), ours(x, t))


def test_recomputed_gradients_are_the_same() -> None:
    torch.manual_seed(0)
    model = new_model(dropout=0.2)
    torch.nn.init.normal_(model.out[2].weight)
    again = new_model(dropout=0.2, use_checkpoint=True)
    again.load_state_dict(model.state_dict())
    x, t = torch.randn(2, 3, 16, 16), torch.tensor([1.0, 5.0])
    for network in (model, again):
        torch.manual_seed(1)
        network(x, t).square().mean().backward()
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-7) for a, b in pairs)


def test_half_precision_and_back() -> None:
    model = new_model(use_fp16=True)
    model.convert_to_fp16()
    assert model.input_blocks[0][0].weight.dtype == model.dtype == torch.float16
    assert model.time_embed[0].weight.dtype == torch.float32
    assert model(torch.randn(1, 3, 16, 16), torch.ones(1)).dtype == torch.float32
    model.convert_to_fp32()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="Labels y must be given to a class-conditional model"):
        new_model(num_classes=10)(torch.zeros(1, 3, 16, 16), torch.ones(1))
    with pytest.raises(UserError, match="learn_sigma, which needs 6"):
        new_model(dims=3)
    with pytest.raises(UserError, match=r"state_dict has no label_emb\.weight"):
        new_model(num_classes=10).load_state_dict(UNet(CONFIG).state_dict())
