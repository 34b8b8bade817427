"""How many tokens a draft should propose: the most new tokens for the time that proposing and verifying them takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from genwright.kernels.cpu.fused_linear import kernel
from genwright.text.loader import Model

# Constants and counted bytes instead of measurements, because results must not depend on the clock.
ROW_COST = 0.02  # on a GPU
# Llama-2-7B on an H200 takes 4.1 ms for two to eight rows and 3.3 ms for one; the rest is the time of launches.
VERIFY_COST = 0.5
ROW_COST_ON_CPU = 0.1  # SmolLM2 on two cores: six rows take 1.5 times as long as one; packed 1.7 to 1.9 times
ROW_COST_OF_TORCH = 0.2  # on a CPU without our kernel


@dataclass(frozen=True)
class StepCost:
    """The time of a step by its rows, relative to one row, for which it mostly reads weights."""

    row: float  # of each further row
    several: float = 0.0  # of having more than one
    second_row: float = 0.0  # of reading the experts that the second row chooses and the first does not
    unchosen: float = 0.0  # the probability that a row does not choose an expert

    @staticmethod
    def of(model: Model) -> "StepCost":
        """A further row of a mixture reads experts of its own, fewer the more rows there are."""
        moe, gpu = model.cfg.moe, model.device.type != "cpu"
        row = ROW_COST if gpu else ROW_COST_OF_TORCH if kernel() is None else ROW_COST_ON_CPU
        unchosen = 0.0 if moe is None else 1 - moe.top_k / moe.experts
        second_row = model.bytes_read(2) / model.bytes_read(1) - 1
        return StepCost(row, VERIFY_COST if gpu else 0.0, second_row, unchosen)

    def of_proposals(self, count: int, batch: int) -> float:
        """Of `count` proposed tokens for each sequence of a batch, relative to the step without them."""
        without = self._rows(batch)
        verify = self.several if batch == 1 else 0.0  # a batch has several rows anyway
        return verify + (self._rows(batch * (1 + count)) - without) / without

    def _rows(self, rows: int) -> float:
        experts = (1 - self.unchosen ** (rows - 1)) / (1 - self.unchosen)
        return 1 + self.row * (rows - 1) + self.second_row * experts


class ProposalLength:
    """How many tokens to propose for one request, from how many of its proposals were accepted."""

    MEMORY = 0.9  # decay of the counts at each proposal
    PAUSE = 16  # most steps between two trials while proposing does not pay; fewer where a trial is cheap
    SHARE = 0.01  # of the time spent on trials
    PATIENCE = 16  # the pause grows up to this factor while all trials fail
    WAIT = 4  # most steps in flight before a draft that had nothing to propose is asked again

    def __init__(self) -> None:
        self.accepted, self.rejected = 3.2, 0.8  # counts; the initial values are a prior
        self.skipped, self.failed = 0, 0  # steps without a proposal since the last one, and trials in a row that failed
        self.unanswered, self.waited = 0, 0  # times in a row that the draft had nothing, and steps since the last time

    def best(self, most: int, costs: Sequence[float]) -> int:
        """The k with the most tokens per cost, (1 - a^(k+1)) / (1 - a) / (1 + costs[k]) (Leviathan et al., 2023).

        There are costs of two proposed tokens at least.
        """
        a = self.accepted / (self.accepted + self.rejected)
        best, most_gained, tokens = 0, 1.0, 1.0
        for k in range(1, most + 1):
            tokens += a**k
            if (gained := tokens / (1 + costs[k])) > most_gained:
                best, most_gained = k, gained
        pause = min((costs[2] - costs[1]) / self.SHARE, self.PAUSE) * min(2**self.failed, self.PATIENCE)
        return best or min(most, int(self.skipped >= pause))

    def has_waited(self) -> bool:
        """Whether it is time to read the step in flight, so that the draft can be asked."""
        return self.waited >= min(self.unanswered, self.WAIT)

    def answer(self, found: bool) -> None:
        """Take note of whether the draft had something to propose."""
        self.unanswered, self.waited = 0 if found else self.unanswered + 1, 0

    def learn(self, proposed: int, accepted: int) -> None:
        """Take note of how many proposed tokens were accepted."""
        self.accepted = self.accepted * self.MEMORY + accepted
        self.rejected = self.rejected * self.MEMORY + (accepted < proposed)
        self.failed = 0 if accepted else self.failed + bool(self.skipped)
        self.skipped = 0
