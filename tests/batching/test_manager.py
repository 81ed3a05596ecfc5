"""Continuous batching behind transformers' own interface."""

import asyncio
import copy
import os
import queue
import re
import select
import threading
import time

import pytest
import torch
from draft_models import with_adapter
from helpers import CHECKPOINTS, EOS, PAD, PROMPTS, load
from recorded_graph import captures_on_cpu
from stock_families import stock
from tiny_tokenizer import make_tokenizer
from transformers import ContinuousBatchingConfig, ContinuousBatchingManager, GenerationConfig
from transformers.generation.continuous_batching.requests import RequestStatus

from wedlm import fuse
from wedlm.batching.manager import CANCELLED, NO_MEMORY, STOPPED, BatchingManager, logger
from wedlm.batching.scheduler import Scheduler

VERIFIED = {"decoding": "verified", "max_new_tokens": 20, "eos_token_id": None, "pad_token_id": PAD}
BLOCK_SIZE = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
TWO_TEXTS = GenerationConfig(num_return_sequences=2, do_sample=True)


needs_pause = pytest.mark.skipif(
    not hasattr(ContinuousBatchingManager, "pause"), reason="this version of transformers cannot pause"
)


@pytest.fixture
def model():
    model = load(CHECKPOINTS / "q3").double()
    model.generation_config.update(**VERIFIED)
    return model


@pytest.fixture
def manager(model):
    with model.continuous_batching_context_manager() as manager:
        yield manager


def alone(model, tokens, **settings):
    return model.generate(torch.tensor([tokens]), **settings)[0, len(tokens) :].tolist()


def manager_of(model, generation_config=None, **fields):
    config = ContinuousBatchingConfig(**fields)
    return model.init_continuous_batching(generation_config, continuous_batching_config=config)


def last_outputs(manager, number):
    """The last output of each of so many requests, in the order in which they came."""
    outputs = {}
    while len(outputs) < number:
        output = manager.get_result(timeout=60)
        if output.is_finished():
            outputs[output.request_id] = output
    return outputs


# --- generate_batch ---


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified", "autoregressive"])
def test_generate_batch_writes_what_generate_writes_for_each_row(model, decoding):
    outputs = model.generate_batch(PROMPTS, decoding=decoding, max_new_tokens=25, eos_token_id=EOS)
    assert list(outputs) == [f"req_{i}" for i in range(len(PROMPTS))]
    for tokens, output in zip(PROMPTS, outputs.values(), strict=True):
        assert output.prompt_ids == tokens and output.status == RequestStatus.FINISHED and output.error is None
        expected = alone(model, tokens, decoding=decoding, max_new_tokens=25, eos_token_id=EOS)
        assert output.generated_tokens == expected


def test_a_manager_has_its_own_cache_whatever_its_config_says(model):
    config = GenerationConfig(**VERIFIED, use_cache=False)  # as transformers' server says
    (output,) = model.generate_batch(PROMPTS[:1], config).values()
    assert output.generated_tokens == alone(model, PROMPTS[0]) and config.use_cache is False


def test_without_a_seed_sampled_texts_follow_the_generator_of_torch(model):
    """A seeded training run can be repeated, and its steps draw different texts."""

    def texts(**fields):
        config = ContinuousBatchingConfig(**fields)
        outputs = model.generate_batch(PROMPTS[:2], continuous_batching_config=config, do_sample=True)
        return [output.generated_tokens for output in outputs.values()]

    def two_steps():
        torch.manual_seed(3)
        return texts(), texts()

    first, second = two_steps()
    assert (first, second) == two_steps() and first != second
    assert texts(seed=3) == texts(seed=3)


def test_generate_batch_logs_that_requests_failed(model, monkeypatch):
    """transformers does, too: who reads the tokens alone would take a failed text for a short one."""
    logged = []
    monkeypatch.setattr(logger, "error", logged.append)
    model.generate_batch(PROMPTS[:2])
    assert logged == []
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    model.generate_batch(PROMPTS[:2])
    (message,) = logged
    assert message.startswith("2 of 2 requests failed. The error of the first: The weight model.norm.weight holds")


def test_several_texts_of_a_prompt_stand_before_it(model):
    config = GenerationConfig(num_return_sequences=3, do_sample=True, **VERIFIED)
    outputs = model.generate_batch(PROMPTS[:2], config)
    assert list(outputs)[:3] == ["req_0__child#0", "req_0__child#1", "req_0"] and len(outputs) == 6
    texts = {tuple(output.generated_tokens) for output in list(outputs.values())[:3]}
    assert len(texts) == 3


def test_nothing_is_left_behind_by_a_refused_batch(model):
    with pytest.raises(ValueError, match="input_ids of a request is one prompt"):
        model.generate_batch([PROMPTS[0], []])
    with pytest.raises(ValueError, match="holds 999"):
        model.generate_batch([[999]])
    with pytest.raises(ValueError, match="num_beams=2 is not offered"):
        model.generate_batch([PROMPTS[0]], num_beams=2)
    assert not any("_run_generation_loop" in thread.name for thread in threading.enumerate())
    assert model.generate_batch([]) == {}


def in_float64(name):
    return copy.deepcopy(stock(name)).double()


@pytest.mark.parametrize(
    "make",
    [
        lambda: in_float64("Llama"),
        lambda: in_float64("Gemma3Text"),
        lambda: fuse(in_float64("Qwen3")),
        lambda: fuse(in_float64("Llama"), weights="q8_0"),
        lambda: with_adapter(in_float64("Mistral, sliding")),
        lambda: fuse(with_adapter(in_float64("Qwen3"))),
    ],
    ids=["as it is", "layers that differ", "fused", "q8_0", "with adapter", "fused with adapter"],
)
def test_a_stock_model_writes_what_generate_writes_for_each_prompt(make):
    model = make()
    prompts = [[5, 6, 7] * 4, [9, 8], [5, 6, 7, 5, 3], [11] * 17]
    settings = {"max_new_tokens": 20, "eos_token_id": 2, "pad_token_id": 0}
    outputs = model.generate_batch(prompts, decoding="verified", **settings)
    assert [output.generated_tokens for output in outputs.values()] == [
        alone(model, tokens, **settings) for tokens in prompts
    ]
    own = model.init_continuous_batching(GenerationConfig(decoding="verified"))
    assert type(own) is BatchingManager and type(model.init_continuous_batching()) is ContinuousBatchingManager


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
@pytest.mark.parametrize("asks", ["in the call", "in the config", "in the model's config, as for a server"])
def test_forwards_are_captured_with_a_static_cache(decoding, asks):
    settings = {"max_new_tokens": 20, "eos_token_id": EOS, "pad_token_id": 0, "decoding": decoding}
    prompts = [[5, 6, 7] * 4, [9, 8], [5, 6, 7, 5, 3], [11] * 17]
    static = {"cache_implementation": "static"}
    with captures_on_cpu() as graphs:
        model = load(CHECKPOINTS / "q3").double() if decoding == "streaming" else with_adapter(in_float64("Qwen3"))
        expected = [alone(model, tokens, **settings) for tokens in prompts]
        model.generate_batch(prompts, **settings)
        assert not graphs
        if asks == "in the call":
            outputs = model.generate_batch(prompts, **settings, **static)
        elif asks == "in the config":
            outputs = model.generate_batch(prompts, GenerationConfig(**settings, **static))
        else:
            model.generation_config.cache_implementation = "static"
            outputs = model.generate_batch(prompts, **settings)
        assert graphs and [output.generated_tokens for output in outputs.values()] == expected


# --- Requests ---


def test_each_request_has_its_own_settings(model, manager):
    tokenizer = make_tokenizer()
    stop = re.search("[A-Za-z0-9]{3}", tokenizer.decode(alone(model, PROMPTS[4], max_new_tokens=15)))[0]
    asked = {
        "streaming": {"decoding": "streaming", "max_new_tokens": 9},
        "drawn": {"do_sample": True, "temperature": 1.3, "max_new_tokens": 15},
        "token by token": {"decoding": "autoregressive", "max_new_tokens": 12},
        "penalized": {"repetition_penalty": 1.4, "max_new_tokens": 11},
        "until a text": {"stop_strings": [stop], "tokenizer": tokenizer, "max_new_tokens": 18},
        "by a config": {"generation_config": GenerationConfig(max_new_tokens=8, decoding="blockwise", window_size=3)},
        "None beside a config": {"generation_config": GenerationConfig(**VERIFIED, do_sample=True), "top_k": None},
    }
    for i, (name, settings) in enumerate(asked.items()):
        assert manager.add_request(PROMPTS[i % 5], name, seed=5, **settings) == name
    outputs = last_outputs(manager, len(asked))
    for i, (name, settings) in enumerate(asked.items()):
        torch.manual_seed(5)
        assert outputs[name].generated_tokens == alone(model, PROMPTS[i % 5], **settings), name
    assert len(outputs["until a text"].generated_tokens) < 18


def test_a_stream_shows_the_text_so_far_and_times(manager):
    manager.add_request(PROMPTS[0], "a", streaming=True, record_timestamps=True)
    seen = list(manager.request_id_iter("a"))
    texts = [output.generated_tokens for output in seen]
    assert len(texts) > 1 and all(a == b[: len(a)] and len(a) < len(b) for a, b in zip(texts, texts[1:], strict=False))
    assert [output.is_finished() for output in seen] == [False] * (len(seen) - 1) + [True]
    assert len(seen[-1].timestamps) == 20 and seen[-1].timestamps == sorted(seen[-1].timestamps)
    assert 0 < seen[-1].lifespan[0] <= seen[-1].lifespan[1]


def test_a_cancelled_request_says_so_and_frees_its_place(model):
    config = ContinuousBatchingConfig(max_requests_per_batch=1)
    with model.continuous_batching_context_manager(continuous_batching_config=config) as manager:
        manager.add_request(PROMPTS[0], "long", max_new_tokens=10_000, eos_token_id=-1, streaming=True)
        manager.add_request(PROMPTS[1], "next")
        manager.add_request(PROMPTS[2], "never")
        assert manager.get_result(timeout=5).request_id == "long"
        for name in ("never", "long", "unknown"):
            manager.cancel_request(name)
        last = last_outputs(manager, 3)
    assert last["long"].error == last["never"].error == CANCELLED and last["never"].generated_tokens == []
    assert last["next"].error is None and 0 < len(last["long"].generated_tokens) < 10_000


def test_requests_are_admitted_in_order(model):
    config = ContinuousBatchingConfig(max_requests_per_batch=2)
    with model.continuous_batching_context_manager(continuous_batching_config=config) as manager:
        names = manager.add_requests([PROMPTS[0]] * 6)
        assert list(last_outputs(manager, 6)) == names


def test_what_can_never_fit_is_refused_at_once(model):
    manager = manager_of(model, num_blocks=2, **{BLOCK_SIZE: 32})
    assert manager.max_cached_tokens == 64
    with pytest.raises(ValueError, match="max_new_tokens=20 needs room for .* there is room for 64"):
        manager.add_request(list(range(3, 60)))
    manager.add_request([3, 4, 5], max_new_tokens=5)


def test_beyond_max_queue_size_a_request_waits_and_is_then_refused(model, monkeypatch):
    monkeypatch.setattr("wedlm.batching.manager.FULL_AFTER", 0.05)
    manager = manager_of(model, max_queue_size=1, max_requests_per_batch=1)
    manager.add_requests(PROMPTS[:2])  # one for the batch, and one that waits
    with pytest.raises(queue.Full, match="max_queue_size=1 requests wait"):
        manager.add_request(PROMPTS[0])
    manager.full_after = 60
    threading.Timer(0.05, manager.start).start()
    manager.add_request(PROMPTS[0])
    manager.stop()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"input_ids": []}, "one prompt: a list of at least one token id"),
        ({"input_ids": [3, 159]}, "holds the MASK token"),
        ({"input_ids": [3], "request_id": "a"}, "request_id='a' is that of a request under way"),
        ({"input_ids": [3], "streamer": object()}, "streamer is not offered .* streaming=True"),
        ({"input_ids": [3], "use_cache": False}, "use_cache=False is not offered"),
        ({"input_ids": [3], "output_scores": True}, "output_scores=True is not offered for a request of a batch"),
        ({"input_ids": [3], "window_size": 0}, "window_size=0 is not a number of slots"),
        ({"input_ids": [3], "num_return_sequences": 2}, "num_return_sequences is not offered for a request"),
        ({"input_ids": [3], "generation_config": TWO_TEXTS}, "num_return_sequences=2 is not offered for a request"),
    ],
)
def test_bad_requests_are_refused_where_they_are_made(model, arguments, sentence):
    manager = model.init_continuous_batching()
    manager.add_request(PROMPTS[0], "a")
    with pytest.raises(ValueError, match=sentence):
        manager.add_request(**arguments)
    assert list(manager.waiting) == ["a"]


def test_who_is_cancelled_in_the_last_step_is_not_cancelled_again(manager, monkeypatch):
    step = Scheduler.step

    def cancelling(batch):
        progress = step(batch)
        if any(each.has_ended for each in progress):
            manager.cancel_request("a")
        return progress

    drop, late = manager.remove_cancelled, threading.Event()
    monkeypatch.setattr(Scheduler, "step", cancelling)
    monkeypatch.setattr(manager, "remove_cancelled", lambda: late.is_set() and drop())
    manager.add_request(PROMPTS[0], "a")
    assert manager.get_result("a").error is None and manager.cancelled == {"a"}
    manager.add_request(PROMPTS[0], "a")
    late.set()
    assert manager.get_result("a").error is None


def test_all_texts_of_a_request_are_cancelled(model):
    manager = model.init_continuous_batching(GenerationConfig(num_return_sequences=3, do_sample=True, **VERIFIED))
    manager.add_request(PROMPTS[0], "a", max_new_tokens=10_000)
    manager.cancel_request("a")
    manager.start()
    manager.stop()
    assert [output.error for output in manager] == [CANCELLED] * 3


def test_free_rows_without_room_are_no_places_in_line(model):
    manager = manager_of(model, max_queue_size=1, num_blocks=4, **{BLOCK_SIZE: 32})
    manager.full_after, manager.scheduler = 0, Scheduler(model, manager.max_cached_tokens, 64)
    for tokens in PROMPTS[:2]:
        manager.add_request(tokens, max_new_tokens=60)
    assert not manager.is_full()
    manager.admit()
    assert len(manager.running) == len(manager.waiting) == 1
    with pytest.raises(queue.Full):
        manager.add_request(PROMPTS[2], max_new_tokens=60)


# --- The thread ---


def test_after_an_error_of_the_thread_every_caller_is_told(model, monkeypatch):
    step = Scheduler.step

    def failing(batch):
        if batch.counts.steps == 3:
            raise ZeroDivisionError("injected")
        return step(batch)

    monkeypatch.setattr(Scheduler, "step", failing)
    manager = manager_of(model, max_requests_per_batch=2)
    names = manager.add_requests(PROMPTS[:4])
    manager.start()
    outputs = last_outputs(manager, 4)
    told = {"The thread that generates has died (ZeroDivisionError: injected)."}
    assert set(outputs) == set(names) and {o.error for o in outputs.values()} == told
    manager._generation_thread.join()
    assert isinstance(manager.background_thread_status.fatal_error, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="has died .ZeroDivisionError: injected.; start the manager again"):
        manager.add_request(PROMPTS[0])
    monkeypatch.undo()
    manager.start()
    manager.add_request(PROMPTS[0], "again")
    assert manager.get_result(timeout=5).request_id == "again"
    manager.stop()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_that_its_manager_has_no_thread(manager):
    reading, writing = os.pipe()
    with manager.changed:  # as the thread may hold it just then
        child = os.fork()
        if child == 0:
            try:
                manager.add_request(PROMPTS[0])
            except BaseException as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
    os.close(writing)
    assert select.select([reading], [], [], 30)[0], "the child hangs"
    assert b"is in the process that forked this one" in os.read(reading, 1000)
    os.waitpid(child, 0)


def test_where_memory_is_refused_the_thread_lives(model, monkeypatch):
    """Rows fail, those that wait go on, and so do later requests."""
    step = Scheduler.step

    def refusing(batch):
        if batch.counts.steps == 3:
            batch.counts.steps += 1
            batch.cache = None  # as if it were half done
            raise MemoryError
        return step(batch)

    monkeypatch.setattr(Scheduler, "step", refusing)
    config = ContinuousBatchingConfig(max_requests_per_batch=2)
    with model.continuous_batching_context_manager(continuous_batching_config=config) as manager:
        names = manager.add_requests(PROMPTS[:3], max_new_tokens=60)
        outputs = last_outputs(manager, 3)
        assert [outputs[name].error for name in names] == [NO_MEMORY, NO_MEMORY, None]
        manager.add_request(PROMPTS[0], "later")
        assert manager.get_result("later", timeout=60).generated_tokens == alone(model, PROMPTS[0])


def test_more_noise_than_there_is_memory_is_refused_at_once(model, monkeypatch):
    monkeypatch.setattr("wedlm.batching.manager.free_memory", lambda device: 2**23)
    manager = model.init_continuous_batching()
    manager.add_request(PROMPTS[0])
    with pytest.raises(ValueError, match="window_size=2000 needs 9 MiB for .* there is room for 2 MiB; make it"):
        manager.add_request(PROMPTS[0], decoding="streaming", window_size=2000, max_new_tokens=5000)


def test_a_hard_stop_answers_everybody(model):
    manager = manager_of(model, max_requests_per_batch=2)
    manager.add_requests(PROMPTS[:4], max_new_tokens=10_000)
    manager.start()
    time.sleep(0.1)
    manager.stop(hard_stop=True)
    outputs = list(manager)
    assert len(outputs) == 4 and {output.error for output in outputs} == {STOPPED}
    with pytest.raises(RuntimeError, match="start it again"):
        manager.add_request(PROMPTS[0])


def test_a_handler_gets_the_outputs_from_before_it_was_there(model, manager):
    async def main():
        manager.add_request(PROMPTS[0], "a")
        while not manager.outputs:
            await asyncio.sleep(0.01)
        got = asyncio.get_running_loop().create_future()
        manager.register_result_handler("a", got.set_result)
        return await asyncio.wait_for(got, 5)

    assert asyncio.run(main()).generated_tokens == alone(model, PROMPTS[0])


@needs_pause
def test_a_pause_holds_the_thread(manager):
    manager.add_request(PROMPTS[0], "a", max_new_tokens=500, streaming=True)
    assert manager.get_result(timeout=5) is not None
    with manager.pause():
        while manager.get_result(timeout=0.05) is not None:
            pass
        steps = manager.counts.steps
        time.sleep(0.1)
        assert manager.counts.steps == steps
        with pytest.raises(RuntimeError, match="cannot stop inside its own pause"):
            manager.stop()
    *_, last = manager.request_id_iter("a")
    assert len(last.generated_tokens) == 500


@needs_pause
def test_after_a_pause_no_old_keys_are_taken_over(model, manager):
    """Neither those of a text that has ended nor those of one that goes on."""
    manager.add_request(PROMPTS[0], "a")
    (first,) = manager.request_id_iter("a")
    manager.add_request(PROMPTS[1], "goes on", max_new_tokens=500, streaming=True)
    assert manager.get_result("goes on") is not None
    with manager.pause(), torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    for prompt in (first.prompt_ids + first.generated_tokens + [7], PROMPTS[1] + [7]):
        manager.add_request(prompt, "later")
        (later,) = manager.request_id_iter("later")
        assert later.generated_tokens == alone(model, prompt)
    assert manager.counts.found_tokens == 0 and manager.is_active("goes on")
    assert manager.scheduler.prefix_cache.num_tokens > 0
    manager.cancel_request("goes on")


def test_a_loop_that_was_closed_ends_nobody_else(model, manager):
    async def leave():
        manager.add_request(PROMPTS[0], "a", streaming=True, max_new_tokens=300)
        manager.register_result_handler("a", lambda output: None)

    asyncio.run(leave())
    manager.add_request(PROMPTS[1], "b")
    assert manager.get_result("b").generated_tokens == alone(model, PROMPTS[1])


def test_who_waits_is_told_when_nothing_can_come(model):
    manager = model.init_continuous_batching()
    manager.start()
    threading.Timer(0.1, manager.destroy).start()
    assert manager.get_result() is None
