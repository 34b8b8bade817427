"""FlexLLMGen's benchmark over several ranks: each has some of the layers, and places them by the same policy."""

import argparse
import os
from dataclasses import replace

from flexllmgen.flex_opt import add_parser_arguments, get_filename, measure
from flexllmgen.opt_config import OptConfig
from flexllmgen.opt_lm import OptLM, Policy
from flexllmgen.utils import ExecutionEnv
from genwright.errors import UserError

_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
}


class DistOptLM(OptLM):
    """A model in stages; its batch is `num_inner_iterations` times the policy's. A rank other than 0 ends with rank 0.

    The engine chooses how ranks communicate: by NCCL if each has a GPU of its own, else over gloo.
    """

    def __init__(
        self,
        config: str | OptConfig,
        env: ExecutionEnv,
        path: str,
        policy: Policy,
        pipeline_rank: int,
        num_pipeline_stages: int,
        comm_device: str,
        num_inner_iterations: int | None = None,
        async_comm: bool = False,
    ):
        self.pipeline_rank, self.stages = pipeline_rank, num_pipeline_stages
        batches = policy.num_gpu_batches * (num_inner_iterations or num_pipeline_stages)
        super().__init__(config, env, path, replace(policy, num_gpu_batches=batches))


def join_ranks(args: argparse.Namespace) -> None:
    """Tell the engine, in torchrun's words, which rank this process is; without an address it is the only one."""
    if args.head_ip is None or args.port is None:
        args.rank, args.local_rank, args.world_size = 0, 0, 1
        return
    if args.use_mpi:
        try:
            found = {name: int(os.environ[variable]) for name, variable in _MPI.items()}
        except (KeyError, ValueError):
            raise UserError("--use-mpi needs mpirun of Open MPI, which tells each process its rank.") from None
        vars(args).update(found)
    if args.rank is None or args.world_size is None:
        raise UserError("Several ranks need --rank and --world-size, or --use-mpi.")
    args.local_rank = args.rank if args.local_rank is None else args.local_rank
    told = {"RANK": args.rank, "WORLD_SIZE": args.world_size, "LOCAL_RANK": args.local_rank}
    told |= {"MASTER_ADDR": args.head_ip, "MASTER_PORT": args.port}
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in os.environ:
        told["LOCAL_WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]
    os.environ.update({name: str(value) for name, value in told.items()})


def run_flexllmgen_dist(args: argparse.Namespace) -> None:
    """Measure prefill and decoding of a batch over the ranks; rank 0 prints the report and appends it to a log file."""
    inner, stages = args.num_inner_iterations or args.world_size, args.world_size

    def new_model(config: OptConfig, env: ExecutionEnv, path: str, policy: Policy) -> OptLM:
        return DistOptLM(config, env, path, policy, args.rank, stages, args.comm_device, inner, args.async_comm)

    if args.log_file == "auto":
        args.log_file = f"rank-{stages - 1}-{get_filename(args)}.log"
    measure(args, new_model, inner)


def add_distributed_parser_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--head-ip", help="The address of rank 0's machine.")
    add("--port", type=int, help="A free port of that machine.")
    add("--rank", metavar="I", type=int, help="This process among all.")
    add("--local-rank", metavar="I", type=int, help="This process among those of its machine; default: the rank.")
    add("--world-size", metavar="N", type=int, help="The number of processes.")
    add("--use-mpi", action="store_true", help="Take these numbers from mpirun.")
    add("--comm-device", default="gpu", choices=("gpu", "cpu"), help="Accepted; the engine chooses.")
    add("--num-inner-iterations", metavar="I", type=int, help="Batches at a time; default: the number of processes.")
    add("--async-comm", action="store_true", help="Accepted; the engine chooses.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_parser_arguments(parser)
    add_distributed_parser_arguments(parser)
    arguments = parser.parse_args()
    join_ranks(arguments)
    run_flexllmgen_dist(arguments)
