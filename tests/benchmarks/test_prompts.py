"""Prompts are conversations of a length, or random tokens."""

from transformers import AutoTokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER


def test_prompts_of_a_checkpoint_are_conversations_up_to_a_length(load_benchmark):
    chat = load_benchmark("prompts").chat
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    for length in (20, 300):
        messages = chat(tokenizer, 0, length)
        size = len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        assert messages[-1]["role"] == "user" and (len(messages) == 1 or length - 150 < size <= length)
    assert len(messages) > 1
    assert chat(tokenizer, 0, 300)[-1] != chat(tokenizer, 1, 300)[-1]


def test_prompts_without_a_tokenizer_are_random_tokens(load_benchmark, tiny_model):
    inputs = load_benchmark("prompts").prompts(tiny_model, None, batch_size=3, length=50)
    assert inputs["input_ids"].shape == (3, 50) and inputs["attention_mask"].all()
    assert not (inputs["input_ids"] == tiny_model.config.mask_token_id).any()
