"""The random numbers of sampled text: each slot has its own, whatever forwards its row takes."""

from collections import deque

import torch


class SlotNoise:
    """Gumbel noise for the slots of every row.

    A token is drawn as the argmax of scores + noise. The noise of a slot is drawn once, in the order of the slots, and
    serves every forward that looks at the slot. So a seed fixes the text, whatever forwards the text is written in.

    A single row takes its noise from the device's generator as transformers' own loop does, which draws by
    torch.multinomial. So verified decoding samples the text that autoregressive decoding samples with the same seed,
    and leaves the generator as that loop leaves it. In a batch each row has a generator of its own, which the default
    one seeds; so no row's text depends on another's.

    Args:
        num_rows (`int`): The rows of the batch.
        num_slots (`int`): The slots of a row that have noise at a time.
        vocab_size (`int`): The size of the vocabulary.
        device (`torch.device`): Where the scores are.
        generator (`torch.Generator`, *optional*): The generator of a single row, in place of the device's own.
    """

    def __init__(
        self,
        num_rows: int,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ):
        # Slot s is at s % num_slots.
        self.values = torch.zeros(num_rows, num_slots, vocab_size, dtype=torch.float32, device=device)
        self.num_drawn = [0] * num_rows
        self.generators: list[torch.Generator | None] = [generator]
        if num_rows > 1:
            seeds = torch.randint(2**63 - 1, (num_rows,)).tolist()
            self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.states = deque(maxlen=num_slots + 1)  # of the device's generator, the last one as it is now
        self.keep_state()

    def draw(self, rows: list[int], ends: list[int]) -> None:
        """Draws noise for the slots of `rows` before `ends`, as far as it is not there yet."""
        num_slots = self.values.shape[1]
        for row, end in zip(rows, ends, strict=True):
            for slot in range(self.num_drawn[row], end):
                noise = self.values[row, slot % num_slots].exponential_(generator=self.generators[row])
                noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_().neg_()
                self.num_drawn[row] = slot + 1
                self.keep_state()

    @property
    def is_of_device(self) -> bool:
        """Whether a single row draws by the device's own generator."""
        return self.generators == [None]

    def keep_state(self) -> None:
        if self.is_of_device:
            self.states.append(random_state(self.values.device))

    def give_back(self, num_tokens: int) -> None:
        """Leaves the device's generator as one row of `num_tokens` tokens leaves it that draws for nothing else."""
        num_unused = self.num_drawn[0] - num_tokens
        if self.is_of_device and num_unused > 0:
            set_random_state(self.states[-1 - num_unused], self.values.device)


def noise_places(noise: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Where the noise of `slots`, `[batch, n]`, stands in `noise.flatten(0, 1)`."""
    return rows[:, None] * noise.shape[1] + slots % noise.shape[1]


def random_state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
