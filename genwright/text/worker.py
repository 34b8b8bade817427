"""What a rank other than 0 runs: `python -m genwright.text.worker`, or LLM under torchrun."""

import os
import signal
import sys
import warnings

import torch

from genwright.device import pick_device
from genwright.errors import GenwrightWarning, UserError
from genwright.parallel.ranks import Ranks, meet
from genwright.parallel.rendezvous import Place
from genwright.text.build import build_engine, open_model
from genwright.text.engine.grammar import Grammars
from genwright.text.engine.sharded import ShardedEngine
from genwright.text.settings import EngineConfig

MODULE = "genwright.text.worker"


def follow_rank_0(config: EngineConfig) -> None:
    """In a rank of torchrun other than 0: work until rank 0 ends, and exit. Elsewhere: return at once."""
    place, ranks = Place.from_environment(), config.layout.ranks
    if place is not None and place.ranks > 1 and place.ranks != ranks:
        raise UserError(f"torchrun started {place.ranks} ranks, but tp times pp is {ranks}.")
    if place is not None and place.rank != 0:
        work(meet(ranks, MODULE, torch.get_num_threads()))


def meet_ranks(config: EngineConfig) -> Ranks:
    """Rank 0 meets the others; unless torchrun started them, they are started here and share the processors."""
    if Place.from_environment() is None:
        torch.set_num_threads(max(torch.get_num_threads() // config.layout.ranks, 1))
    return meet(config.layout.ranks, MODULE, torch.get_num_threads())


def rank_device(name: str) -> torch.device:
    """The device of this rank: each one of a machine takes a GPU of its own, as far as there are enough."""
    place = Place.from_environment()
    if place is not None and name in ("auto", "cuda") and torch.cuda.is_available():
        name = f"cuda:{place.local_rank % torch.cuda.device_count()}"
    device = pick_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels are compiled for the current device and use its streams
    return device


def work(ranks: Ranks) -> None:
    """Load this rank's part of the model that rank 0 names, follow its steps, and exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every rank, and rank 0 decides
    warnings.simplefilter("ignore", GenwrightWarning)  # rank 0 shows it
    try:
        told = ranks.broadcast()
        config = EngineConfig(**told["config"])
        device = rank_device(config.device)
        checkpoint = open_model(told["model"], config)
        engine = build_engine(checkpoint, config, device, lambda done, total: None, ranks)
        assert isinstance(engine, ShardedEngine)
        tokenizer = checkpoint.tokenizer()
        grammars = Grammars(tokenizer, checkpoint.config.vocab_size, told["eos_ids"])
        engine.follow(lambda: tokenizer.stream() if tokenizer else None, grammars)
    except Exception as error:
        ranks.exit(error)
    ranks.close()
    sys.exit(0)


if __name__ == "__main__":
    work(meet(int(os.environ["WORLD_SIZE"]), MODULE, 1))
