import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from genwright.errors import UserError
from genwright.images.data.dataset import Batches, ImageDataset
from genwright.images.model.denoiser import Denoiser
from genwright.images.model.unet import new_unet
from genwright.images.model.unet_config import UNetConfig
from genwright.images.sampling.schedules import karras, karras_level
from genwright.images.training import noise_levels
from genwright.images.training.trainer import SECOND_STEP, Trainer
from genwright.images.training.training_settings import TrainerSettings

SMALL = UNetConfig(
    image_size=8,
    num_channels=32,
    num_res_blocks=1,
    channel_mult=(1,),
    attention_resolutions=(8,),
    num_head_channels=32,
    num_classes=3,
    dropout=0.1,
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    data = ImageDataset(images, np.arange(12) % 3, ("a", "b", "c"), np.arange(12).astype(str))
    return Batches(data, torch.device("cpu"), balance=0.5, mirrored=("a", "b"))


def trainer(settings, batches, **more):
    teacher = new_unet(SMALL, 7) if settings.has_teacher else None
    return Trainer(settings, new_unet(SMALL, settings.seed), batches, teacher=teacher, **more)


def weights(trained):
    nets = [net for net in (trained.unet, trained.ema, trained.target, trained.critic) if net is not None]
    return torch.cat([parameter.detach().flatten() for net in nets for parameter in net.parameters()])


@pytest.mark.parametrize(
    "settings",
    [
        TrainerSettings(method="edm", steps=100, warmup=5, anneal=0.3),
        TrainerSettings(method="consistency", steps=12, accumulate=2, stages=4),
        TrainerSettings(method="consistency", steps=12, schedule="adaptive", loss_norm="l1"),
        TrainerSettings(method="distill", steps=12, start_scales=10),
        TrainerSettings(method="progdist", steps=12, start_scales=4),
        TrainerSettings(method="dmd", steps=12, pairs=6),
    ],
    ids=lambda settings: f"{settings.method}-{settings.schedule}",
)
def test_two_halves_are_the_whole_bit_for_bit(settings, batches, tmp_path):
    settings = replace(settings, batch_size=4, lr=1e-3)
    whole = trainer(settings, batches)
    start = weights(whole)
    whole.run(settings.steps)
    first = trainer(settings, batches)
    first.run(settings.steps // 2)
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    torch.manual_seed(1234)  # what else a new process has drawn does not matter
    second = trainer(settings, batches)
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    second.run(settings.steps)
    assert torch.equal(weights(second), weights(whole)) and second.step == whole.step
    assert not torch.equal(weights(whole), start)


def test_a_quarter_of_dmd_are_second_steps(batches, monkeypatch):
    calls = []

    def denoiser(net, labels, seed, consistency=None):
        def denoise(x, sigma):
            calls.append((net, x.clone(), sigma.clone(), labels.clone()))
            return x / 100 + labels.view(-1, 1, 1, 1)

        return denoise

    found = []
    for keep in (0.0, 0.5):
        trained = trainer(TrainerSettings(method="dmd", steps=4, batch_size=8, pairs=6, keep=keep), batches)
        monkeypatch.setattr(trained, "_denoiser", denoiser)
        trained.step = 1
        torch.manual_seed(0)
        found.append(trained._distribution_matching(8, seed=0))
    assert [net for net, *_ in calls[4:]] == [trained.unet, trained.unet, trained.critic, trained.teacher]
    (_, noise, sigma, labels), (_, x, t, asked), *_ = calls
    assert torch.equal(x[:6], noise[:6]) and torch.equal(t[:6], sigma[:6]) and (t[6:] == SECOND_STEP).all()
    assert torch.equal(asked[:6], labels[:6]) and torch.equal(asked[6:], labels[:2])
    added = x[6:] - (noise[:2] / 100 + labels[:2].view(-1, 1, 1, 1))
    assert added.std().item() == pytest.approx(2.24, rel=0.15)
    # They are free of the teacher's images.
    assert (found[1] > found[0]).tolist() == [True] * 6 + [False] * 2


def test_accumulated_micro_batches_train_as_one_batch(batches):
    """The gradient of a step is the mean over its micro-batches, each drawn from hash(seed, step, its number)."""
    settings = TrainerSettings(steps=10, batch_size=8, accumulate=2, lr=1e-3, seed=3)
    accumulated = trainer(settings, batches)
    accumulated.optimizer.zero_grad = lambda set_to_none: None  # keep the gradient to look at
    accumulated.run(1)
    ranks = [trainer(replace(settings, accumulate=1), batches, rank=rank, world=2) for rank in (0, 1)]
    for rank in ranks:
        rank.optimizer.zero_grad = lambda set_to_none: None
        rank._sum_over_ranks = lambda total: None  # what two processes would have added
        rank.run(1)
    for together, *alone in zip(accumulated.parameters, *(rank.parameters for rank in ranks), strict=True):
        if together.grad is not None:
            torch.testing.assert_close(together.grad, alone[0].grad + alone[1].grad)


def test_averages_are_by_their_decays(batches):
    settings = TrainerSettings(steps=10, batch_size=4, lr=1e-2, ema=(0.5, 0.9), ema_warmup=False)
    trained = trainer(settings, batches)
    start = trained.unet.state_dict()["out.2.weight"].clone()
    trained.run(1)
    now = trained.unet.state_dict()["out.2.weight"]
    for decay, ema in zip(settings.ema, trained.emas, strict=True):
        torch.testing.assert_close(ema.state_dict()["out.2.weight"], decay * start + (1 - decay) * now)
    assert trained.ema is trained.emas[1]


def test_losses_fall():
    plain = np.broadcast_to(np.array([[0], [128], [255]], np.uint8)[:, :, None, None], (3, 8, 8, 3)).copy()
    data = ImageDataset(plain, np.arange(3), ("a", "b", "c"), np.arange(3).astype(str))
    trained = trainer(TrainerSettings(steps=100, batch_size=8, lr=3e-3), Batches(data, torch.device("cpu")))
    trained.run(100)
    assert trained.history[-1][1] < 0.5 * trained.history[0][1]


class Moons:
    """Two half circles with a little noise, as images of two channels and one pixel, of standard deviation 0.5."""

    device = torch.device("cpu")

    def read_ahead(self, seed, count):
        pass

    def draw(self, count):
        angle = math.pi * torch.rand(count)
        upper = torch.rand(count) < 0.5
        x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
        y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
        points = torch.stack([0.58 * x, y], dim=1) + 0.02 * torch.randn(count, 2)
        return points.view(count, 2, 1, 1), None


class Mlp(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.config = SMALL
        self.layers = nn.Sequential(
            nn.Linear(12, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.last = nn.Linear(width, 2)

    def forward(self, x, t, labels):
        waves = [f(t / 1000 * 2.0**k) for k in range(5) for f in (torch.cos, torch.sin)]
        return self.last(self.layers(torch.cat([x.flatten(1), torch.stack(waves, dim=1)], dim=1))).view_as(x)


def test_two_moons_in_one_step():
    torch.manual_seed(0)
    settings = TrainerSettings(
        method="consistency",
        steps=1500,
        batch_size=256,
        lr=2e-3,
        anneal=0.5,
        ema=(0.99,),
        stages=5,
        p_mean=-0.5,
        p_std=1.5,
    )
    settings = replace(settings, sigma_max=10.0)
    trained = Trainer(settings, Mlp(), Moons())
    trained.run(settings.steps)
    torch.manual_seed(1)
    with torch.no_grad():
        denoiser = Denoiser(trained.ema, consistency=True)
        samples = denoiser(10 * torch.randn(4000, 2, 1, 1), torch.full((4000,), 10.0)).flatten(1).numpy()
    moons, others = (Moons().draw(4000)[0].flatten(1).numpy() for _ in range(2))
    normal = np.random.default_rng(0).multivariate_normal(moons.mean(axis=0), np.cov(moons.T), 4000)

    def distance(points):
        """The mean over directions of the earth mover's distance between projections."""
        angles = np.linspace(0, math.pi, 16, endpoint=False)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return np.mean([scipy.stats.wasserstein_distance(points @ d, moons @ d) for d in directions])

    def share_near(points, reached):
        gaps = points[::4, None] - reached[None, ::4]
        return np.mean(np.sqrt((gaps**2).sum(axis=2)).min(axis=1) < 0.1)

    # A normal distribution of the same mean and covariance is what a model without a clue would give.
    assert distance(others) < 0.02 and distance(samples) < 0.05 < 0.08 < distance(normal)
    assert share_near(samples, others) > 0.6 > 0.5 > share_near(normal, others)
    assert share_near(others, samples) > 0.97


def test_adaptive_schedule_is_the_papers():
    """N(k) = ceil(sqrt(k/K ((s1 + 1)^2 - s0^2) + s0^2) - 1) + 1, by hand; mu(k) = exp(s0 ln mu0 / (N(k) - 1))."""
    for step, levels in [(0, 2), (1, 16), (50, 107), (99, 151), (100, 151)]:
        mu, scales = noise_levels.adaptive_schedule(step, 100, 2, 150, 0.95)
        assert scales == levels
        assert mu == pytest.approx(0.95 ** (2 / (levels - 1)))


def test_ect_gaps_halve():
    t = torch.tensor([0.1, 1.0, 10.0, 80.0], dtype=torch.float64)
    gaps = [t - noise_levels.ect_lower_level(t, stage, 1e-9) for stage in (5, 6)]
    torch.testing.assert_close(gaps[0], 2 * gaps[1])
    torch.testing.assert_close(gaps[0] / t, (1 + 8 / (1 + t.exp())) / 64)
    # At sigma_min the target is the image itself, as in EDM's loss.
    assert torch.equal(noise_levels.ect_lower_level(t, 0, 0.002)[:2], torch.full_like(t[:2], 0.002))
    assert [noise_levels.ect_stage(k, 100, 2, 6) for k in (0, 24, 25, 75, 99, 100)] == [2, 2, 3, 5, 5, 5]


def test_levels_follow_karras():
    levels = karras_level(torch.arange(40, dtype=torch.float64) / 39, 0.002, 80.0, 7.0)
    torch.testing.assert_close(levels, torch.tensor(karras(40, 0.002, 80.0), dtype=torch.float64))


def test_progressive_distillation_halves(batches):
    halving = TrainerSettings(method="progdist", steps=90, start_scales=4)
    assert [halving.progressive_stage(k)[0] for k in (0, 29, 30, 59, 60, 89, 90)] == [4, 4, 2, 2, 1, 1, 1]
    trained = trainer(TrainerSettings(method="progdist", start_scales=2, steps=4, batch_size=4, lr=1e-3), batches)
    trained.run(2)
    student = [parameter.clone() for parameter in trained.unet.parameters()]
    trained.run(3)  # whose step begins by making the student the teacher
    assert all(torch.equal(a, b) for a, b in zip(student, trained.teacher.parameters(), strict=True))


def test_learning_rate_rises_and_falls():
    settings = TrainerSettings(steps=100, lr=1.0, warmup=9, anneal=0.5)
    assert [settings.lr_at(k) for k in (0, 9, 50, 75)] == pytest.approx([0.1, 1.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "gan"}, "method must be one of .* not 'gan'"),
        ({"schedule": "linear"}, "schedule must be one of .* not 'linear'"),
        ({"steps": 0}, "steps must be a whole number between 1 and"),
        ({"lr": -1.0}, "lr must be a number between"),
        ({"first_stage": 8}, "between 0 and 7, not 8"),
        ({"method": "progdist", "start_scales": 6}, "power of 2"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, words):
    with pytest.raises(UserError, match=words):
        TrainerSettings(**settings)


def test_wrong_trainers_are_one_sentence(batches):
    with pytest.raises(UserError, match="needs a teacher"):
        Trainer(TrainerSettings(method="distill"), new_unet(SMALL, 0), batches)
    with pytest.raises(UserError, match="must be a multiple of 2"):
        Trainer(TrainerSettings(batch_size=5, accumulate=2), new_unet(SMALL, 0), batches)
