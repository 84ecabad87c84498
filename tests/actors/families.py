"""Small tokenisers with the control tokens and the chat templates of well-known families of models, as published.

Knows how each family writes its turns. Knows nothing of what is tested with them.
"""

from functools import cache

from msgspec import Struct
from tokenizers import AddedToken, Tokenizer, normalizers

from actors.vocabulary import Vocabulary
from tests.actors.vocabularies import CHATML, byte_fallback, byte_level

QWEN = (
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- set content = message.content %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}"
    "{%- elif message.role == 'assistant' %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{%- endif %}"
)
LLAMA_3 = (
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
    "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}"
    "{{- bos_token }}{%- for message in loop_messages %}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Conversation roles must alternate') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}{%- if loop.last and system_message is defined %}"
    "{{- '[INST] ' + system_message + '\n\n' + message['content'] + '[/INST]' }}{%- else %}"
    "{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PHI_3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


class Family(Struct, frozen=True):
    """`tokenizer` is what `vocabulary` was made of, for what the library alone would say."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    template: str
    special_tokens: dict[str, str]

    @property
    def controls(self) -> dict[int, str]:
        """What steers the model, by number, blanks not among it."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {number: token.content for number, token in added.items() if token.content.strip()}


def _family(tokenizer: Tokenizer, template: str, added: list[AddedToken], **special_tokens: str) -> Family:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return Family(tokenizer, Vocabulary(tokenizer, template, special_tokens), template, special_tokens)


def _special(*texts: str, **how: bool) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False, **how) for text in texts]


def _named(*texts: str, normalized: bool = False) -> list[AddedToken]:
    """Added, and not flagged special."""
    return [AddedToken(text, special=False, normalized=normalized) for text in texts]


@cache
def families() -> dict[str, Family]:
    composed = Tokenizer.from_str(byte_level().to_str().replace('"normalized":true', '"normalized":false'))
    composed.normalizer = normalizers.NFC()
    compatible = Tokenizer.from_str(byte_level().to_str())
    compatible.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return {
        "ChatML": _family(byte_level(), CHATML, []),
        "Qwen 3": _family(composed, QWEN, _named("</think>", "<tool_call>", "</tool_call>", "<|fim_prefix|>")),
        "Llama 3": _family(
            byte_level(),
            LLAMA_3,
            _special("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
            bos_token="<|begin_of_text|>",
        ),
        "Mistral": _family(
            byte_fallback(), MISTRAL, _special("[INST]", "[/INST]", "[TOOL_CALLS]"), bos_token="<s>", eos_token="</s>"
        ),
        "Gemma": _family(
            byte_fallback(0),
            GEMMA,
            [*_special("<bos>", "<start_of_turn>", "<end_of_turn>"), *_named("\n\n", "\n\n\n", "<unused0>", "[@BOS@]")],
            bos_token="<bos>",
        ),
        "Phi 3": _family(
            byte_fallback(), PHI_3, _special("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", rstrip=True)
        ),
        # Nobody's: what is added is looked for in a normalised text, where a look-alike is the same.
        "of look-alikes": _family(compatible, CHATML, _named("<|tool|>", "<answer>", normalized=True)),
    }
