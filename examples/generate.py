"""Decodes a batch of questions with a WeDLM: python examples/generate.py [MODEL]"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import wedlm

QUESTIONS = ["Count by 5 from 10 to 60.", "Count down by 1 from 20 to 10."]

name = sys.argv[1] if len(sys.argv) > 1 else "hub_card/wedlm-demo"
model = wedlm.fuse(AutoModelForCausalLM.from_pretrained(name))
tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")

chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
inputs = tokenizer.apply_chat_template(
    chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
)
for decoding in ("autoregressive", "verified"):  # the same text, up to rounding
    output = model.generate(
        **inputs.to(model.device), decoding=decoding, max_new_tokens=80, do_sample=False, return_dict_in_generate=True
    )
    answers = tokenizer.batch_decode(output.sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    for answer, forwards in zip(answers, output.forwards.tolist(), strict=True):
        print(f"{decoding}, {forwards} forwards: {answer}")
