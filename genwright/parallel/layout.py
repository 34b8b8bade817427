"""Layout: which part of a model each rank has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """`pp` stages of consecutive layers, each of them cut over `tp` ranks; those of a stage are next to each other."""

    tp: int = 1
    pp: int = 1
    expert_parallel: bool = False  # the ranks of a stage have whole experts, not a part of each

    @property
    def ranks(self) -> int:
        return self.tp * self.pp

    def stage(self, rank: int) -> int:
        return rank // self.tp

    def stage_ranks(self, stage: int) -> list[int]:
        """The ranks of a stage, which share its layers."""
        return list(range(stage * self.tp, (stage + 1) * self.tp))

    def column(self, rank: int) -> list[int]:
        """The ranks that have the same part of every stage, in the order of the stages."""
        return list(range(rank % self.tp, self.ranks, self.tp))

    def layers(self, rank: int, layers: int) -> range:
        """The layers of a rank's stage."""
        stage = self.stage(rank)
        return range(layers * stage // self.pp, layers * (stage + 1) // self.pp)
