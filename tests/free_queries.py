"""Costs of steps that stand still, for tests in which the number of queries is free to choose."""

from wedlm.generation.step_costs import Experience, StepCosts, StepTime


class FixedCosts(StepCosts):
    """Costs that learn nothing.

    Args:
        further (`dict[int, float]`): What a step of some width takes longer than one of a single query, which takes a
            second.
    """

    def __init__(self, further: dict[int, float] | None = None):
        super().__init__()
        self.times[0] = StepTime(width=1, num_timed=2, seconds=1.0)
        for width, seconds in (further or {}).items():
            self.times[(width - 1).bit_length()] = StepTime(width, 2, 1.0 + seconds)

    def note(self, width: int, seconds: float) -> None:
        pass


class FixedExperience(Experience):
    """Experience that learns nothing."""

    def __init__(self, further: dict[int, float] | None = None):
        super().__init__()
        self.fixed = FixedCosts(further)

    def costs_of(self, num_rows: int, longest: int, is_static: bool = False) -> StepCosts:
        return self.fixed

    def note_drafts(self, first, last) -> None:
        pass


def costless(model) -> Experience:
    return FixedExperience({32: 0.0})
