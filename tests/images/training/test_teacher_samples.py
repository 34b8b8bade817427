"""A teacher's states against Heun's method, written once more."""

import numpy as np
import torch

from genwright.images.data.dataset import Batches, ImageDataset
from genwright.images.model.denoiser import Denoiser
from genwright.images.model.unet import new_unet
from genwright.images.model.unet_config import UNetConfig
from genwright.images.training.teacher_samples import LOWEST, sample_teacher

TINY = UNetConfig(image_size=8, num_channels=32, num_res_blocks=1, channel_mult=(1,), num_heads=1, num_classes=3)


@torch.no_grad()
def test_every_point_is_a_heun_step_from_the_one_before():
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    data = ImageDataset(images, np.arange(12) % 3, ("a", "b", "c"), np.arange(12).astype(str))
    teacher = new_unet(TINY, 0)
    torch.nn.init.normal_(teacher.out[2].weight, std=0.1)
    found = sample_teacher(teacher, Batches(data, torch.device("cpu")), 5, seed=3)
    low, high = 0.002 ** (1 / 7), 80 ** (1 / 7)
    sigmas = [(high + i / 17 * (low - high)) ** 7 for i in range(18)]
    kept = [sigma for sigma in sigmas if sigma >= LOWEST]
    np.testing.assert_allclose(found.sigmas, kept, rtol=1e-6)
    assert found.states.shape == (len(kept), 5, 3, 8, 8) and abs(found.states[0].float().std().item() / 80 - 1) < 0.1

    denoiser = Denoiser(teacher)
    ends = []
    for i in range(len(kept)):
        x = found.states[i].float()
        for t, s in zip(sigmas[i:], [*sigmas[i + 1 :], 0.0], strict=True):
            clean = [denoiser(x, torch.full((5,), t), found.labels).clamp(-1, 1)]
            euler = x + (s - t) * (x - clean[0]) / t
            if s:
                clean.append(denoiser(euler, torch.full((5,), s), found.labels).clamp(-1, 1))
                euler = x + (s - t) * ((x - clean[0]) / t + (euler - clean[1]) / s) / 2
            x = euler
        ends.append(((x + 1) * 127.5).clamp(0, 255))
    for end in ends:
        assert (end.floor() - found.images.float()).abs().max() <= 1  # points are rounded to float16


def test_half_of_a_batch_is_noise_alone():
    images = np.zeros((3, 8, 8, 3), np.uint8)
    data = ImageDataset(images, np.arange(3), ("a", "b", "c"), np.arange(3).astype(str))
    found = sample_teacher(new_unet(TINY, 0), Batches(data, torch.device("cpu")), 6, seed=0)
    x, sigma, image, labels = found.draw(8)
    assert (sigma[:4] == sigma.max()).all() and sigma.min() >= LOWEST
    for one, level, goal, label in zip(x, sigma, image, labels, strict=True):
        i = (found.sigmas == level).nonzero().item()
        row = (found.states[i].float() == one).flatten(1).all(dim=1).nonzero().item()
        assert label == found.labels[row]
        assert torch.equal(((goal + 1) * 127.5 - 0.5).round().to(torch.uint8), found.images[row])
