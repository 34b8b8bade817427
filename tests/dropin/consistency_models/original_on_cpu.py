"""Run an original's script on its own modules, on a CPU: `original_on_cpu.py CHECKOUT LOSS_NORM SCRIPT ARGS...`.

What is not installed is replaced: mpi4py by one rank, or torchrun's ranks; blobfile by files; flash_attn and einops by
attention in plain PyTorch. cm_train's --loss_norm, which the original does not pass on, is LOSS_NORM.
"""

import os
import random
import runpy
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from images.piq_stub import vgg16
from torch import nn


def stub(name: str, **names) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(names)
    return module


class Attention(nn.Module):
    def __init__(self, **_):
        super().__init__()

    def forward(self, qkv, **_):
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # of [batch, length, 3, heads, channels]
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2), None


def rearrange(x, pattern, three=None, h=None):
    if three is None:  # "b s h d -> b (h d) s"
        return x.flatten(2).transpose(1, 2)
    batch, channels, length = x.shape  # "b (three h d) s -> b s three h d"
    return x.view(batch, 3, h, channels // (3 * h), length).permute(0, 4, 1, 2, 3)


def lpips(**options):
    """piq's, with the weights of torch.hub's folder; made without a draw from torch's generator."""
    with torch.random.fork_rng():
        return sys.modules["real_piq"].LPIPS(**options)


def bcast(value, root=0):
    values = [value]
    if world > 1:
        dist.broadcast_object_list(values, root)
    return values[0]


checkout, loss_norm = sys.argv[1:3]
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
comm = SimpleNamespace(rank=rank, size=world, Get_rank=lambda: rank, Get_size=lambda: world)
comm.bcast = bcast
if world > 1:
    dist.init_process_group("gloo")
stub("mpi4py", MPI=SimpleNamespace(COMM_WORLD=comm))
stub(
    "blobfile", BlobFile=open, join=os.path.join, dirname=os.path.dirname, basename=os.path.basename,
    exists=os.path.exists, listdir=os.listdir, isdir=os.path.isdir,
)  # fmt: skip
stub("flash_attn", flash_attention=stub("flash_attn.flash_attention", FlashAttention=Attention))
stub("einops", rearrange=rearrange)
models = stub("torchvision.models", vgg16=vgg16, vgg19=vgg16)
models.inception = SimpleNamespace(**dict.fromkeys(("InceptionA", "InceptionC", "InceptionE"), nn.Module))
stub("torchvision", models=models, transforms=stub("torchvision.transforms", RandomCrop=None))
if loss_norm == "lpips":
    import piq

    sys.modules["real_piq"] = piq
stub("piq", LPIPS=lpips if loss_norm == "lpips" else lambda **_: None)

sys.path.insert(0, checkout)
from cm import karras_diffusion, train_util  # noqa: E402

create = karras_diffusion.KarrasDenoiser.__init__
create.__defaults__ = (*create.__defaults__[:-1], loss_norm)
if "--use_fp16" not in sys.argv:
    # The original averages the target with flat copies of all weights, and so only for the flat copies of fp16.
    train_util.get_param_groups_and_shapes = lambda named: [([(name, p)], p.shape) for name, p in named]

if __name__ == "__main__":
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    del sys.argv[:3]
    runpy.run_path(sys.argv[0], run_name="__main__")
