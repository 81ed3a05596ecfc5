"""A tokenizer with merges, and chat templates of the kinds that matter to a loss mask."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
END, _, _, MASK = range(4)
CORPUS = [
    "the cat sat on the mat and the dog sat on the log",
    "user assistant system ASSISTANT: USER: [INST] [/INST] <think> </think>",
    "a\n\nb\n\n\nc :\n d.\n e  f",
] * 3

# Prefix-stable, with a default system prompt.
QWEN25 = """\
{%- if messages[0]['role'] == 'system' -%}
<|im_start|>system
{{ messages[0]['content'] }}<|im_end|>
{% else -%}
<|im_start|>system
the dog<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message['role'] != 'system' or not loop.first -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}
{%- for call in message['tool_calls'] or [] -%}
{{ '\n<tool_call>' + call['name'] + '</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

# Not prefix-stable: thinking is written behind the last user message only; the last turn always has it, if empty.
QWEN3 = """\
{%- if tools -%}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{%- endif -%}
{%- set state = namespace(last_user=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set state.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- set thought = '' -%}{%- set content = message.content or '' -%}
{%- if '</think>' in content -%}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{ '<|im_start|>assistant\n' }}
{%- if loop.index0 > state.last_user and (loop.last or thought) -%}
{{ '<think>\n' + thought + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else -%}
{{ content }}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first or content -%}{{ '\n' }}{%- endif -%}
{{ '<tool_call>' + call.name + '</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

# The generation prompt opens the thinking, which earlier turns do not have.
THINKING = QWEN3.replace(
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}",
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}",
)

# No generation prompt, roles not marked by special tokens.
INSTRUCT = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{{ ' ' + message['content'] + '<|endoftext|>' }}
{%- else -%}{{ '[INST] ' + message['content'] + ' [/INST]' }}{%- endif -%}
{%- endfor -%}
"""

# A prompt that ends in a space, which is part of the answer's first token in the whole text.
COLON = """\
{%- for message in messages -%}
{{ message['role'].upper() + ': ' + message['content'] + ('<|im_end|>' if message['role'] == 'assistant' else '\n') }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT: ' }}{%- endif -%}
"""

MARKED = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}{{ message['content'] + '<|im_end|>' }}{%- endif -%}
{{ '\n' }}
{%- endfor -%}
"""


def make_tokenizer(chat_template=QWEN25, trim_offsets=False, **tokens):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim_offsets)
    tokenizer.decoder = decoders.ByteLevel()
    if trim_offsets:
        from tokenizers import processors

        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    named = {"eos_token": SPECIAL[END], "pad_token": SPECIAL[END], "mask_token": SPECIAL[MASK], **tokens}
    result = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    result.chat_template = chat_template
    return result
