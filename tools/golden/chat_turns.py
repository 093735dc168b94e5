"""Golden conversations with the tokens that the assistant wrote, by transformers.

usage: chat_turns.py MODELS_DIR OUT.json     (needs transformers, jinja2)

transformers knows what an assistant wrote only by tags `{% generation %}`. So each model's own template is given these tags
around an assistant's content and the token that ends its turn; the output holds that template, the ids of each conversation,
and 1 for each token that the assistant wrote. The same ids must come from the template without the tags.
"""

import json
import pathlib
import sys

from transformers import AutoTokenizer

CONVERSATIONS = {
    "one": [{"role": "user", "content": "What does \"ember\" mean?"}, {"role": "assistant", "content": "A glowing coal."}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say \u00e9t\u00e9 and 42."},
        {"role": "assistant", "content": "  \u00c9t\u00e9, 42.\n"},
    ],
    "three": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two three"},
        {"role": "user", "content": "and then?\n\nassistant"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "\n\nfive\nassistant\n"},
    ],
    "open": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ],
    "silent": [{"role": "user", "content": "Nobody answers."}],
}

CHATML = """{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}{% generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- message['content'] + '<|im_end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA = """{{- bos_token }}{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation -%}
        {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endgeneration -%}
    {%- else %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

TEMPLATES = {"tiny-llama": LLAMA, "tiny-qwen2": CHATML, "lexicon-qwen3": CHATML}


def main() -> None:
    models, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    cases = []
    for name, template in TEMPLATES.items():
        tokenizer = AutoTokenizer.from_pretrained(models / name)
        for label, conversation in CONVERSATIONS.items():
            own = tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=True)["input_ids"]
            marked = tokenizer.apply_chat_template(
                conversation, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            assert own == marked["input_ids"], (name, label)
            cases.append([name, label, own, marked["assistant_masks"]])
    golden = {"templates": TEMPLATES, "conversations": CONVERSATIONS, "cases": cases}
    out.write_text(json.dumps(golden, ensure_ascii=False) + "\n")
    print(len(cases), "cases,", sum(sum(case[3]) for case in cases), "tokens of assistants")


if __name__ == "__main__":
    main()
