import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DModel
from images.tiny_unet import TINY

from genwright.errors import UserError
from genwright.images.model.checkpoint import draw_weights, load_unet
from genwright.images.model.presets import PRESETS, unet_config
from genwright.images.model.unet import UNet
from genwright.images.model.unet_config import UNetConfig

DATA = Path(__file__).parents[1] / "fixtures"
PUBLISHED = [
    ("imagenet64", "imagenet64_state_dict.txt"),
    ("bedroom256", "lsun256_state_dict.txt"),
    ("cat256", "lsun256_state_dict.txt"),
]


def published_shapes(file):
    lines = [line.split() for line in (DATA / file).read_text().splitlines() if not line.startswith("#")]
    return {name: tuple(map(int, shape.split("x"))) for name, shape in lines}


@pytest.mark.parametrize(("preset", "file"), PUBLISHED)
def test_published_checkpoints_load_strictly(preset, file):
    state = {name: torch.empty(shape, device="meta") for name, shape in published_shapes(file).items()}
    with torch.device("meta"):
        unet = UNet(PRESETS[preset])
    unet.load_state_dict(state, strict=True, assign=True)


@pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="writes and reads a file of 600 MB")
def test_published_checkpoint_loads_from_a_file(tmp_path):
    shapes = published_shapes("imagenet64_state_dict.txt")
    torch.save({name: torch.zeros(shape, dtype=torch.float16) for name, shape in shapes.items()}, tmp_path / "model.pt")
    unet = load_unet(str(tmp_path / "model.pt"), PRESETS["imagenet64"])
    assert sum(parameter.numel() for parameter in unet.parameters()) == 295_899_267


def test_original_flags_give_the_preset():
    flags = {"num_channels": 192, "num_res_blocks": 3, "num_head_channels": 64, "resblock_updown": True}
    assert unet_config(None, class_cond=True, image_size=64, **flags) == PRESETS["imagenet64"]
    assert unet_config(None) is None
    assert unet_config("imagenet64", image_size=256).channel_mult == (1, 1, 2, 2, 4, 4)


def to_diffusers(unet):
    """The same network as diffusers' UNet2DModel: the config and key map of its consistency models."""
    config = unet.config
    widths = [int(mult * config.num_channels) for mult in config.channel_mult]
    attends = [config.attends(2**level) for level in range(len(widths))]
    other = UNet2DModel(
        sample_size=config.image_size,
        in_channels=3,
        out_channels=3,
        layers_per_block=config.num_res_blocks,
        block_out_channels=widths,
        down_block_types=["AttnDownBlock2D" if a else "ResnetDownsampleBlock2D" for a in attends],
        up_block_types=["AttnUpBlock2D" if a else "ResnetUpsampleBlock2D" for a in reversed(attends)],
        attention_head_dim=config.num_head_channels,
        num_class_embeds=config.num_classes,
        resnet_time_scale_shift="scale_shift" if config.use_scale_shift_norm else "default",
        attn_norm_num_groups=32,
        upsample_type="resnet",
        downsample_type="resnet",
    )
    ours, theirs = unet.state_dict(), {}

    def copy(new, old):
        for kind in ("weight", "bias"):
            theirs[f"{new}.{kind}"] = ours[f"{old}.{kind}"]

    def resnet(new, old):
        names = [("norm1", "in_layers.0"), ("conv1", "in_layers.2"), ("time_emb_proj", "emb_layers.1")]
        for mine, its in [*names, ("norm2", "out_layers.0"), ("conv2", "out_layers.3")]:
            copy(f"{new}.{mine}", f"{old}.{its}")
        if f"{old}.skip_connection.weight" in ours:
            copy(f"{new}.conv_shortcut", f"{old}.skip_connection")

    def flat(tensor):  # a 1x1 convolution's weight as a matrix
        return tensor[:, :, 0, 0] if tensor.dim() == 4 else tensor

    def attention(new, old):
        copy(f"{new}.group_norm", f"{old}.norm")
        for kind in ("weight", "bias"):
            rows = flat(ours[f"{old}.qkv.{kind}"]).chunk(3)
            for name, part in zip(("to_q", "to_k", "to_v"), rows, strict=True):
                theirs[f"{new}.{name}.{kind}"] = part
            theirs[f"{new}.to_out.0.{kind}"] = flat(ours[f"{old}.proj_out.{kind}"])

    copy("time_embedding.linear_1", "time_embed.0")
    copy("time_embedding.linear_2", "time_embed.2")
    theirs["class_embedding.weight"] = ours["label_emb.weight"]
    copy("conv_in", "input_blocks.0.0")
    block = 1
    for level, attend in enumerate(attends):
        for i in range(config.num_res_blocks):
            resnet(f"down_blocks.{level}.resnets.{i}", f"input_blocks.{block}.0")
            if attend:
                attention(f"down_blocks.{level}.attentions.{i}", f"input_blocks.{block}.1")
            block += 1
        if level < len(widths) - 1:
            resnet(f"down_blocks.{level}.downsamplers.0", f"input_blocks.{block}.0")
            block += 1
    resnet("mid_block.resnets.0", "middle_block.0")
    attention("mid_block.attentions.0", "middle_block.1")
    resnet("mid_block.resnets.1", "middle_block.2")
    block = 0
    for up, attend in enumerate(reversed(attends)):
        for i in range(config.num_res_blocks + 1):
            resnet(f"up_blocks.{up}.resnets.{i}", f"output_blocks.{block}.0")
            if attend:
                attention(f"up_blocks.{up}.attentions.{i}", f"output_blocks.{block}.1")
            block += 1
        if up < len(widths) - 1:
            resnet(f"up_blocks.{up}.upsamplers.0", f"output_blocks.{block - 1}.{2 if attend else 1}")
    copy("conv_norm_out", "out.0")
    copy("conv_out", "out.2")
    other.load_state_dict(theirs, strict=True)
    return other.eval()


@pytest.mark.parametrize("scale_shift", [True, False])
@torch.no_grad()
def test_equals_diffusers(scale_shift):
    unet = draw_weights(replace(TINY, use_scale_shift_norm=scale_shift, channel_mult=(1, 2, 3), num_res_blocks=2), 1)
    x, t, labels = torch.randn(3, 3, 16, 16), torch.tensor([-1500.0, 3.0, 1095.0]), torch.tensor([0, 9, 4])
    expected = to_diffusers(unet)(x, t, class_labels=labels).sample
    assert (unet(x, t, labels) - expected).abs().max() <= 1e-5 * expected.abs().max()


@torch.no_grad()
def test_plain_resampling_and_heads_by_number_equal_float64():
    config = replace(TINY, resblock_updown=False, num_head_channels=-1, num_heads=4, num_heads_upsample=2)
    unet = draw_weights(config, 2)
    x, t, labels = torch.randn(2, 3, 16, 16), torch.tensor([-10.0, 500.0]), torch.tensor([1, 2])
    out = unet(x, t, labels)
    reference = unet.double()(x.double(), t.double(), labels)
    assert reference.dtype == torch.float64
    assert (out - reference).abs().max() <= 1e-5 * reference.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_stays_near(dtype):
    unet = draw_weights(TINY, 3)
    x, t, labels = torch.randn(2, 3, 16, 16), torch.tensor([-10.0, 500.0]), torch.tensor([1, 2])
    expected = unet(x, t, labels)
    out = unet.use_dtype(dtype)(x, t, labels)
    assert out.dtype == torch.float32
    assert (out - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_size": 63}, "must be a multiple of 8, not 63"),
        ({"num_channels": 33}, "multiple of 32"),
        ({"num_classes": 0}, "num_classes must be 1 or more"),
        ({"num_head_channels": 48}, "attention heads"),
    ],
)
def test_wrong_shapes_are_one_sentence(change, words):
    with pytest.raises(UserError, match=words):
        replace(UNetConfig(), **change)


def test_unusual_image_size_is_one_sentence():
    with pytest.raises(UserError, match="channel_mult must be given for image size 96"):
        unet_config("imagenet64", image_size=96)
