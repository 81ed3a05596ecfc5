"""Trains a LoRA with the objective of WeDLM: python examples/lora_trainer.py [MODEL OUT STEPS]"""

import sys

from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments

name, out, steps = sys.argv[1:] or ["hub_card/wedlm-demo", "build/lora", "60"]
model = WeDLMForCausalLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)

question = {"role": "user", "content": "Which town is it?"}
chat = [question, {"role": "assistant", "content": "It is Lima."}]
rows = Dataset.from_list([{"messages": chat}] * 8)

# The embedding of MASK is trained too: for a converted model it is new.
config = LoraConfig(
    r=16,
    target_modules="all-linear",
    trainable_token_indices={"embed_tokens": [model.config.mask_token_id]},
    task_type="CAUSAL_LM",
)
arguments = WeDLMTrainingArguments(
    out, packing=True, max_length=256, learning_rate=5e-3, max_steps=int(steps), report_to="none"
)
trainer = WeDLMTrainer(get_peft_model(model, config), arguments, train_dataset=rows, processing_class=tokenizer)
trainer.train()
trainer.save_model()  # `wedlm merge OUT MERGED` makes a whole checkpoint of it

inputs = tokenizer.apply_chat_template([question], add_generation_prompt=True, return_dict=True, return_tensors="pt")
ids = trainer.model.generate(**inputs, max_new_tokens=32, decoding="verified", do_sample=False)
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
