"""Trains a draft adapter on the model's own answers: python examples/adapt.py [MODEL OUT STEPS]

`wedlm adapt` does the same for many prompts, goes on where it was stopped, and measures the adapter.
"""

import sys

from datasets import Dataset
from peft import get_peft_model
from transformers import AutoTokenizer

from wedlm import DraftLoraConfig, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments

words = sys.argv[1:] or ["hub_card/wedlm-demo", "build/drafts", "8"]
if len(words) != 3 or not words[2].isdecimal():
    sys.exit(__doc__)
name, out, steps = words
try:
    model = WeDLMForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
except (OSError, ValueError) as error:
    sys.exit(" ".join(str(error).split()))

chats = [[{"role": "user", "content": f"Count up by 3 from {start} to {start + 30}."}] for start in range(1, 9)]
inputs = tokenizer.apply_chat_template(
    chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
)
ids = model.generate(**inputs, max_new_tokens=64, decoding="autoregressive", do_sample=False)
answers = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
turns = zip(chats, answers, strict=True)
records = [{"messages": [*chat, {"role": "assistant", "content": answer}]} for chat, answer in turns]

adapted = get_peft_model(model, DraftLoraConfig(r=16, lora_alpha=1024))
arguments = WeDLMTrainingArguments(
    out, objective="draft", learning_rate=4e-4, max_steps=int(steps), packing=True, max_length=512, report_to="none"
)
trainer = WeDLMTrainer(adapted, arguments, train_dataset=Dataset.from_list(records), processing_class=tokenizer)
trainer.train()
trainer.save_model()

verified = adapted.generate(**inputs, max_new_tokens=64, decoding="verified", do_sample=False)
print("The text is the same." if verified.equal(ids) else "Rounding has changed a text.")
