"""FlexLLMGen's completion app: two few-shot prompts, completed with sampling up to the end of the line."""

import argparse

from flexllmgen.flex_opt import ExecutionEnv, OptLM
from flexllmgen.local_tokenizer import find_tokenizer
from flexllmgen.policy_flags import add_policy_flags, make_policy

PROMPTS = (
    "Country: Japan\nCapital: Tokyo\nCountry: Canada\nCapital:",
    "Sentence: The train from Oslo to Bergen was late.\nPlaces: Oslo, Bergen\n"
    "Sentence: We drove from Lyon to Turin in one day.\nPlaces:",
)
_PROMPT_LEN, _GEN_LEN = 128, 32


def main(args: argparse.Namespace) -> None:
    """Complete the prompts and print them with their answers."""
    env, policy = ExecutionEnv.create(args.offload_dir), make_policy(args)
    print("Initialize...")
    tokenizer = find_tokenizer(args.model, args.path)
    tokenizer.add_bos_token = False
    stop = tokenizer("\n").input_ids[0]
    model = OptLM(args.model, env, args.path, policy)
    print("Generate...")
    ids = tokenizer(PROMPTS, padding="max_length", max_length=_PROMPT_LEN).input_ids
    rows = model.generate(ids, do_sample=True, temperature=0.7, max_new_tokens=_GEN_LEN, stop=stop)
    line = "-" * 70
    print(f"Outputs:\n{line}")
    for number, text in enumerate(tokenizer.batch_decode(rows, skip_special_tokens=True)):
        print(f"{number}: {text}\n{line}")
    print("Shutdown...")
    env.close_copy_threads()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_policy_flags(parser)
    parser.set_defaults(gpu_batch_size=len(PROMPTS), num_gpu_batches=1, overlap=True, sep_layer=True, attn_sparsity=1.0)
    main(parser.parse_args())
