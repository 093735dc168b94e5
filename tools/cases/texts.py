"""Templates of chats and what is asked of them."""

# Cuts thoughts off.
THOUGHTS = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set c = m.content %}{%- if '</think>' in c %}"
    "{%- set c = c.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{{- '<|im_start|>assistant\\n' + c + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Cuts channels out as Gemma 4 does.
CHANNELS = (
    "{%- macro strip(text) -%}{%- set ns = namespace(r='') -%}{%- for part in text.split('<channel|>') -%}{%- if '<|channel>' in part -%}"
    "{%- set ns.r = ns.r + part.split('<|channel>')[0] -%}{%- else -%}{%- set ns.r = ns.r + part -%}{%- endif -%}{%- endfor -%}"
    "{{- ns.r | trim -}}{%- endmacro -%}{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}{%- if m.role == 'assistant' -%}"
    "{{- strip(m.content) -}}{%- else -%}{{- m.content | trim -}}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Writes calls as JSON between marks.
JSON_CALLS = (
    "{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}{%- for t in tools %}{{- t | tojson }}{%- endfor %}"
    "{{- '</tools>\\nReturn <tool_call>\\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for call in m.tool_calls or [] %}"
    "{{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
    "{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Writes calls in tags.
TAGGED_CALLS = (
    "{%- if tools %}{{- '<|im_start|>system\\nUse <tool_call>\\n<function=name>\\n<parameter=p>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' }}"
    "{%- for t in tools %}{{- t | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for call in m.tool_calls or [] %}"
    "{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}{%- for k, v in call.function.arguments | items %}"
    "{{- '<parameter=' + k + '>\\n' }}{{- v if v is string else v | tojson }}{{- '\\n</parameter>\\n' }}{%- endfor %}"
    "{{- '</function>\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
WRITE_FILE = {"type": "function", "function": {"name": "write_file", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
}}}


def tagged(value, closed=True):
    """A call in tags, of two values; the last one's tag is left out unless `closed`."""
    last = "</parameter>\n" if closed else ""
    return (
        f"<tool_call>\n<function=write_file>\n<parameter=path>\na.md\n</parameter>\n<parameter=text>\n{value}\n{last}</function>\n</tool_call>"
    )


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}
