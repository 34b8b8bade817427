"""Print greedy tokens of the benchmark's models in tiny shapes: `greedy_tokens.py GENERATE.PY eager|compiled`."""

import json
import os
import runpy
import sys

import torch

for name, shapes in json.loads(os.environ["TINY_SHAPES"]).items():
    __import__(name).transformer_configs.update(shapes)
script = runpy.run_path(sys.argv[1])
compiled = sys.argv[2] == "compiled"
tokens: list[int] = []
for name, module, quantizer in (
    ("Llama-2-7b-chat-hf", "LLaMA", None),
    ("Llama-2-7b-chat-hf", "LLaMA", "LLaMAWeightOnlyInt8QuantHandler"),
    ("Mixtral-8x7B-v0.1", "MixtralMoE", "MixtralMoEWeightOnlyInt8QuantHandler"),
):
    model = script[module].from_name(name).to(torch.bfloat16)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in sorted(model.state_dict()):
            tensor = model.state_dict()[parameter]
            tensor.copy_(0.2 * torch.randn(tensor.shape) + ("norm" in parameter))
        # The likeliest token stands out, so that no rounding decides between two.
        model.tok_embeddings.weight.mul_(10)
        model.output.weight.add_(0.1 * model.tok_embeddings.weight.roll(7, 0))
        if quantizer:
            handler = script[quantizer](model)
            state = handler.create_quantized_state_dict()
            model = handler.convert_for_runtime()
            model.load_state_dict(state, assign=True)
    if compiled and not quantizer:
        functions = script["decode_n_tokens"].__globals__
        functions["decode_one_token"] = torch.compile(functions["decode_one_token"], fullgraph=True)
    prompt = torch.tensor([1, 15043, 29892, 590, 1024, 338], dtype=torch.int32)
    tokens += script["generate"](model.eval(), prompt, 12, temperature=0, top_k=1).tolist()
print(*tokens)
