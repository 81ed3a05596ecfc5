"""The counts of drafts, in the form in which vLLM gives them."""

from types import SimpleNamespace

from wedlm.for_vllm.drafted import drafted


def test_steps_come_first_and_then_the_accepted_drafts_by_place():
    metrics = [
        SimpleNamespace(name="vllm:num_requests_running", value=3),
        SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=[7, 4, 0]),
        SimpleNamespace(name="vllm:spec_decode_num_drafts", value=9),
        SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens", value=11),
    ]
    assert drafted(SimpleNamespace(get_metrics=lambda: metrics)) == [9, 7, 4, 0]
