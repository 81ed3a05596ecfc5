"""Fine-tunes a WeDLM on the next token by TRL: python examples/trl_sft.py [MODEL OUT STEPS]

Decode the result verified. MASKs are not trained, so fewer drafts are accepted than before; `wedlm adapt` trains them
anew. WeDLMTrainer (lora_trainer.py) trains both at once.
"""

import sys

import torch
from datasets import Dataset

from wedlm import WeDLMForCausalLM

try:
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    sys.exit(f"A package is missing ({error}); run: pip install trl.")

name, out, steps = sys.argv[1:] or ["hub_card/wedlm-demo", "build/sft", "8"]
chat = [{"role": "user", "content": "Which town is it?"}, {"role": "assistant", "content": "It is Lima."}]
has_gpu = torch.cuda.is_available()  # SFTConfig takes bfloat16 and a GPU by itself
config = SFTConfig(
    out, max_steps=int(steps), learning_rate=1e-3, packing=True, max_length=256, report_to="none",
    bf16=has_gpu, use_cpu=not has_gpu,
)  # fmt: skip
trainer = SFTTrainer(
    WeDLMForCausalLM.from_pretrained(name),
    args=config,
    train_dataset=Dataset.from_list([{"messages": chat}] * 8),
)
trainer.train()
trainer.save_model()
