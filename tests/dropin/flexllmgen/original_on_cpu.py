"""Run FlexLLMGen's own OptLM on a CPU: `original_on_cpu.py CHECKOUT` reads a job of JSON and prints rows of token ids.

The original calls CUDA's streams and pinned memory everywhere; on a CPU both are replaced by nothing.
"""

import json
import sys
from contextlib import nullcontext

import numpy as np
import torch

sys.path.insert(0, sys.argv[1])

_empty = torch.empty
torch.empty = lambda *sizes, pin_memory=False, **options: _empty(*sizes, **options)
torch.Tensor.cuda = lambda self: self
torch.cuda.Stream = lambda: None
torch.cuda.stream = lambda stream: nullcontext()
torch.cuda.synchronize = torch.cuda.set_device = lambda device=None: None

from flexllmgen.compression import CompressionConfig  # noqa: E402
from flexllmgen.flex_opt import OptLM, Policy  # noqa: E402
from flexllmgen.opt_config import OptConfig  # noqa: E402
from flexllmgen.pytorch_backend import TorchDevice, TorchDisk, TorchMixedDevice  # noqa: E402
from flexllmgen.utils import ExecutionEnv  # noqa: E402

job = json.load(sys.stdin)
gpu, cpu, disk = TorchDevice("cpu"), TorchDevice("cpu"), TorchDisk(job["offload_dir"], num_copy_threads=1)
env = ExecutionEnv(gpu=gpu, cpu=cpu, disk=disk, mixed=TorchMixedDevice([gpu, cpu, disk]))
groups = [CompressionConfig(num_bits=4, group_size=64, group_dim=axis, symmetric=False) for axis in (0, 2)]
switches = True, True, False, job["cpu_cache_compute"]  # overlap, sep_layer, pin_weight
shape = (*job["batches"], *job["percent"], *switches, job["attn_sparsity"])
policy = Policy(*shape, False, groups[0], False, groups[1])
try:
    model = OptLM(OptConfig(**job["config"], dtype=np.float16), env, job["path"], policy)
    with torch.no_grad():  # the copying threads have no inference mode
        rows = model.generate(job["inputs"], max_new_tokens=job["max_new_tokens"], stop=job["stop"])
    print(json.dumps(rows.tolist()))
finally:
    env.close_copy_threads()  # or they would keep the process alive
