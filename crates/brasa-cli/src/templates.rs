//! Built-in chat templates in Jinja, under llama.cpp's names.
//!
//! The templates are those published with the models that they are named after; `chatml`, `llama3` and `gemma` are part of the
//! library.

use brasa::tokenizer::BuiltinTemplate;

/// The source of a template with this name; for a template of the library, the name itself.
pub fn source(name: &str) -> Option<&'static str> {
    let ours = BuiltinTemplate::by_name(name).map(BuiltinTemplate::name);
    ours.or_else(|| TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source))
}

/// All names, separated by commas.
pub fn names() -> String {
    let ours = ["chatml", "llama3", "gemma"].into_iter();
    ours.chain(TEMPLATES.iter().map(|(name, _)| *name)).collect::<Vec<_>>().join(", ")
}

const TEMPLATES: &[(&str, &str)] = &[
    (
        "llama2",
        "{{ bos_token }}[INST] {% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% elif m.role == 'user' %}\
         {{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% if not loop.last %}[INST] {% endif %}{% endif %}{% endfor %}",
    ),
    (
        "llama2-sys",
        "{{ bos_token }}[INST] {% for m in messages %}{% if m.role == 'system' %}<<SYS>>\n{{ m.content }}\n<</SYS>>\n\n\
         {% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>\
         {% if not loop.last %}[INST] {% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v1",
        "{{ bos_token }} [INST] {% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}\
         {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% if not loop.last %} [INST] {% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3",
        "{{ bos_token }}[INST] {% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}\
         {{ m.content }}[/INST]{% else %} {{ m.content | trim }}</s>{% if not loop.last %}[INST] {% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3-tekken",
        "{{ bos_token }}[INST]{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}\
         {{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% if not loop.last %}[INST]{% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]\
         {% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7-tekken",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]\
         {% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    (
        "phi3",
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "phi4",
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}",
    ),
    (
        "falcon3",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|endoftext|>\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "openchat",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}<|end_of_turn|>{% else %}\
         GPT4 Correct {{ m.role | capitalize }}: {{ m.content }}<|end_of_turn|>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}GPT4 Correct Assistant:{% endif %}",
    ),
    (
        "vicuna",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}USER: \
         {{ m.content }}\n{% else %}ASSISTANT: {{ m.content }}</s>\n{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    ),
    (
        "deepseek2",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}User: \
         {{ m.content }}\n\n{% else %}Assistant: {{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}Assistant:{% endif %}",
    ),
    (
        "deepseek3",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}<｜User｜>\
         {{ m.content }}{% else %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<｜Assistant｜>{% endif %}",
    ),
    (
        "command-r",
        "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m.role == 'system' %}<|SYSTEM_TOKEN|>{% elif m.role == 'user' %}\
         <|USER_TOKEN|>{% else %}<|CHATBOT_TOKEN|>{% endif %}{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}\
         {% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    ),
    (
        "chatglm4",
        "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "exaone3",
        "{% for m in messages %}{% if m.role == 'user' %}[|user|]{{ m.content | trim }}\n{% else %}[|{{ m.role }}|]{{ m.content | trim }}\
         [|endofturn|]\n{% endif %}{% endfor %}{% if add_generation_prompt %}[|assistant|]{% endif %}",
    ),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use brasa::Message;
    use brasa::tokenizer::{ChatOptions, ChatTemplate};

    use super::*;

    #[test]
    fn templates_write_their_models_forms() {
        let turns = [("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")];
        let messages = turns.map(|(role, text)| Message::new(role, text));
        for (name, expected) in [
            ("llama2", "^[INST] S\nA [/INST]B</s>[INST] C [/INST]"),
            ("llama2-sys", "^[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST]B</s>[INST] C [/INST]"),
            ("mistral-v1", "^ [INST] S\n\nA [/INST] B</s> [INST] C [/INST]"),
            ("mistral-v3", "^[INST] S\n\nA[/INST] B</s>[INST] C[/INST]"),
            ("mistral-v3-tekken", "^[INST]S\n\nA[/INST]B</s>[INST]C[/INST]"),
            ("mistral-v7", "^[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST] B</s>[INST] C[/INST]"),
            ("mistral-v7-tekken", "^[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]A[/INST]B</s>[INST]C[/INST]"),
            (
                "phi3",
                "^<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
            ),
            ("falcon3", "<|system|>\nS\n<|user|>\nA\n<|assistant|>\nB\n<|user|>\nC\n<|assistant|>\n"),
            (
                "openchat",
                "^S<|end_of_turn|>GPT4 Correct User: A<|end_of_turn|>GPT4 Correct Assistant: B<|end_of_turn|>GPT4 Correct User: C<|end_of_turn|>GPT4 Correct Assistant:",
            ),
            ("vicuna", "^S\n\nUSER: A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:"),
            ("deepseek3", "^S\n\n<｜User｜>A<｜Assistant｜>B<｜end▁of▁sentence｜><｜User｜>C<｜Assistant｜>"),
            (
                "exaone3",
                "[|system|]S[|endofturn|]\n[|user|]A\n[|assistant|]B[|endofturn|]\n[|user|]C\n[|assistant|]",
            ),
        ] {
            let template = ChatTemplate::new(source(name).unwrap(), [("bos_token", "^")]).unwrap();
            assert_eq!(template.render(&messages, &ChatOptions::default()).unwrap(), expected, "{name}");
        }
        assert_eq!(source("chatml"), Some("chatml"));
        assert_eq!(source("nonsense"), None);
    }
}
