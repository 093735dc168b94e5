//! A table of the fields of OpenAI, Anthropic, vLLM, SGLang and llama.cpp that a handler may leave unread.
//!
//! A handler reads the fields that it honours. The table decides about those servers' other fields: some have no effect here, and
//! all others are refused by name unless their value is neutral. So no field that would change an answer is ignored silently.

use serde_json::Value;

/// Treatment of a field that a form of request does not read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Left {
    /// The field has no effect on answers here.
    Inert,
    /// The field would change the answer, so it is refused unless its value is neutral. The text is the reason.
    Refused(Neutral, &'static str),
}

/// The values of a field that have no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Neutral {
    /// `false`, 0, and empty values.
    Empty,
    /// True, which is the behaviour anyway.
    True,
    /// Any of these numbers.
    Numbers(&'static [f64]),
    /// Any of these texts.
    Texts(&'static [&'static str]),
}

impl Neutral {
    /// True if `value` has no effect. Null never has any.
    pub fn holds(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Self::Empty, Value::Bool(is_on)) => !is_on,
            (Self::Empty, Value::Number(number)) => number.as_f64() == Some(0.0),
            (Self::Empty, Value::String(text)) => text.is_empty(),
            (Self::Empty, Value::Array(items)) => items.is_empty(),
            (Self::Empty, Value::Object(map)) => map.is_empty(),
            (Self::True, Value::Bool(is_on)) => *is_on,
            (Self::Numbers(neutral), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| neutral.contains(&number))
            }
            (Self::Texts(neutral), Value::String(text)) => neutral.contains(&text.as_str()),
            _ => false,
        }
    }
}

/// Treatment of the unread field `name`; `None` for an unknown name.
pub(crate) fn left(name: &str) -> Option<Left> {
    let inert = INERT.contains(&name).then_some(Left::Inert);
    let refused = || {
        let (_, neutral, why) = REFUSED.iter().find(|(known, ..)| *known == name)?;
        Some(Left::Refused(*neutral, why))
    };
    let elsewhere = || ELSEWHERE.contains(&name).then_some(Left::Refused(Neutral::Empty, OTHER_FORM));
    inert.or_else(refused).or_else(elsewhere)
}

/// Fields without effect here: settings of hosted services, of other engines' internals, and of samplers that are off.
const INERT: &[&str] = &[
    // OpenAI's and Anthropic's.
    "user",
    "metadata",
    "safety_identifier",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "verbosity",
    "include_obfuscation",
    "cache_control",
    "inference_geo",
    // Limits calls of tools that a server runs itself: this one runs none.
    "max_tool_calls",
    // A guess of the answer, which makes it no other one.
    "prediction",
    // A long conversation stays whole.
    "context_management",
    // vLLM's. The name of a request is the header `x-request-id`.
    "request_id",
    "session_id",
    "spaces_between_special_tokens",
    "guided_decoding_backend",
    "stream_interval",
    // llama.cpp's.
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_decay",
    "n_discard",
    "n_cache_reuse",
    "id_slot",
    "t_max_prompt_ms",
    "backend_sampling",
    "sse_ping_interval",
    "preserved_tokens",
    "reasoning_control",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
    "speculative.n_min",
    "speculative.n_max",
    "speculative.p_min",
];

const TEXT: &str = "the model takes and makes text alone";
const NO_SAMPLER: &str = "Brasa does not have this sampler";
const NO_MIROSTAT: &str = brasa::sampling::NO_MIROSTAT;
const NO_BUDGET: &str = "thoughts are bounded by the limit of the answer alone";
const NO_EXTENSION: &str = "it belongs to an extension of another engine";
const HOSTED: &str = "it belongs to a hosted service";
const WHOLE: &str = "a grammar holds for the whole answer; triggers are not implemented";
const PARSED: &str = "thoughts and calls are always told apart from the answer";
const NO_PLACE: &str = "the events of this form tell nothing of times";
const OTHER_FORM: &str = "this form of request does not have it";

/// Fields that would change an answer and that no form of request honours, with their neutral values and the reason.
const REFUSED: &[(&str, Neutral, &str)] = &[
    // OpenAI's.
    ("audio", Neutral::Empty, TEXT),
    ("web_search_options", Neutral::Empty, TEXT),
    ("moderation", Neutral::Empty, "there is no moderation"),
    ("functions", Neutral::Empty, "it was replaced by `tools`"),
    ("function_call", Neutral::Empty, "it was replaced by `tool_choice`"),
    ("background", Neutral::Empty, "answers are made while the client waits"),
    ("conversation", Neutral::Empty, "the server keeps no conversations"),
    // Anthropic's.
    ("container", Neutral::Empty, HOSTED),
    ("mcp_servers", Neutral::Empty, HOSTED),
    ("speed", Neutral::Texts(&["standard"]), HOSTED),
    // vLLM's.
    ("use_beam_search", Neutral::Empty, "answers are drawn, not searched"),
    ("length_penalty", Neutral::Numbers(&[1.0]), "answers are drawn, not searched"),
    ("watermarking", Neutral::Empty, NO_EXTENSION),
    ("prompt_logprobs", Neutral::Empty, "`/v1/completions` scores a prompt with `echo` and `logprobs`"),
    ("logprob_token_ids", Neutral::Empty, "the likeliest tokens are listed; `top_logprobs` says how many"),
    ("chat_template", Neutral::Empty, "conversations are written by the model's own template"),
    ("prompt_embeds", Neutral::Empty, "prompts are texts or token ids"),
    ("media_io_kwargs", Neutral::Empty, TEXT),
    ("mm_processor_kwargs", Neutral::Empty, TEXT),
    ("multimodal_data", Neutral::Empty, TEXT),
    ("image_data", Neutral::Empty, TEXT),
    ("logits_processors", Neutral::Empty, "programs of a request are not run"),
    ("return_tokens_as_token_ids", Neutral::Empty, "tokens are shown as texts and bytes"),
    ("return_token_offsets", Neutral::Empty, NO_EXTENSION),
    ("return_prompt_text", Neutral::Empty, "`/apply-template` returns the prompt"),
    ("return_mm_kwargs", Neutral::True, TEXT),
    ("routed_experts_prompt_start", Neutral::Empty, NO_EXTENSION),
    ("kv_transfer_params", Neutral::Empty, NO_EXTENSION),
    ("ec_transfer_params", Neutral::Empty, NO_EXTENSION),
    ("vllm_xargs", Neutral::Empty, NO_EXTENSION),
    (
        "repetition_detection",
        Neutral::Empty,
        "an answer ends at its limit, at an end token or at a stop text",
    ),
    ("enable_response_messages", Neutral::Empty, NO_EXTENSION),
    ("previous_input_messages", Neutral::Empty, "the server keeps nothing: send the whole conversation"),
    ("structural_tag", Neutral::Empty, WHOLE),
    ("guided_whitespace_pattern", Neutral::Empty, "the white space of JSON is free"),
    // SGLang's.
    ("regex", Neutral::Empty, "`structured_outputs` takes a `regex`"),
    ("ebnf", Neutral::Empty, "`grammar` takes GBNF and Lark"),
    ("separate_reasoning", Neutral::True, PARSED),
    ("stream_reasoning", Neutral::True, PARSED),
    ("no_stop_trim", Neutral::Empty, "`include_stop_str_in_output` keeps the stop text"),
    ("stop_regex", Neutral::Empty, "stop texts are plain"),
    ("lora_path", Neutral::Empty, "`model` names an adapter: `model:adapter`"),
    ("custom_logit_processor", Neutral::Empty, "programs of a request are not run"),
    ("return_hidden_states", Neutral::Empty, "`/v1/embeddings` returns hidden states"),
    // llama.cpp's.
    ("mirostat", Neutral::Empty, NO_MIROSTAT),
    ("adaptive_target", Neutral::Numbers(&[-1.0]), NO_SAMPLER),
    ("min_keep", Neutral::Empty, "filters keep no least number of tokens"),
    ("n_keep", Neutral::Empty, "an answer ends where the context is full"),
    ("n_cmpl", Neutral::Numbers(&[0.0, 1.0]), "this form has one answer; `n` of the others asks for several"),
    ("verbose", Neutral::Empty, "answers have no `__verbose`"),
    ("system_prompt", Neutral::Empty, "it was replaced by messages of the role `system`"),
    ("grammar_lazy", Neutral::Empty, WHOLE),
    ("grammar_triggers", Neutral::Empty, WHOLE),
    ("chat_format", Neutral::Empty, "the model's own form is read"),
    ("chat_parser", Neutral::Empty, "the model's own form is read"),
    ("generation_prompt", Neutral::Empty, "the template opens the answer"),
    ("reasoning_format", Neutral::Texts(&["auto", "deepseek"]), PARSED),
    ("parse_tool_calls", Neutral::True, PARSED),
    ("thinking_forced_open", Neutral::Empty, "the prompt says whether thoughts are open"),
    ("reasoning_budget", Neutral::Numbers(&[-1.0]), NO_BUDGET),
    ("reasoning_budget_tokens", Neutral::Numbers(&[-1.0]), NO_BUDGET),
    ("reasoning_budget_message", Neutral::Empty, NO_BUDGET),
    ("thinking_budget_tokens", Neutral::Numbers(&[-1.0]), NO_BUDGET),
    ("thinking_token_budget", Neutral::Numbers(&[-1.0]), NO_BUDGET),
    // Honoured by some forms of request, with a neutral value of their own.
    ("n", Neutral::Numbers(&[0.0, 1.0]), "this form has one answer"),
    ("best_of", Neutral::Numbers(&[0.0, 1.0]), "every answer that is computed is returned"),
    ("skip_special_tokens", Neutral::True, "control tokens are shown by `/v1/completions` alone"),
    ("add_special_tokens", Neutral::Empty, "the template writes the tokens in front"),
    ("add_generation_prompt", Neutral::True, OTHER_FORM),
    ("include_reasoning", Neutral::True, "thoughts are always shown in this form"),
    ("truncation_side", Neutral::Texts(&["left"]), OTHER_FORM),
    ("return_token_ids", Neutral::Empty, "`/v1/completions` returns token ids"),
    (
        "truncate_prompt_tokens",
        Neutral::Empty,
        "`/v1/completions` cuts prompts, and `truncate` texts that are embedded",
    ),
    (
        "post_sampling_probs",
        Neutral::Empty,
        "probabilities of this form are those of the model itself; `/completion` has the others",
    ),
    ("normalize", Neutral::True, "vectors have length 1"),
    ("use_activation", Neutral::True, "`raw_scores` leaves the last function out"),
    ("embed_dtype", Neutral::Texts(&["float32", "float"]), "vectors are f32"),
    ("endianness", Neutral::Texts(&["native", "little"]), "bytes are little-endian"),
    ("embd_normalize", Neutral::Numbers(&[2.0]), "`/embedding` has vectors as they are"),
    ("timings_per_token", Neutral::Empty, NO_PLACE),
    ("return_progress", Neutral::Empty, NO_PLACE),
    ("t_max_predict_ms", Neutral::Numbers(&[-1.0, 0.0]), "the server's own limit of time holds in this form"),
    ("parallel_tool_calls", Neutral::True, OTHER_FORM),
    ("tool_choice", Neutral::Texts(&["none", "auto"]), "this form has no tools"),
    ("top_p", Neutral::Numbers(&[1.0]), OTHER_FORM),
    ("top_k", Neutral::Numbers(&[0.0, -1.0]), OTHER_FORM),
    ("repetition_penalty", Neutral::Numbers(&[1.0]), OTHER_FORM),
    ("typical_p", Neutral::Numbers(&[1.0]), OTHER_FORM),
    ("top_n_sigma", Neutral::Numbers(&[0.0, -1.0]), OTHER_FORM),
];

/// Fields that are honoured by some forms of request. In other forms they are refused unless their value is empty.
const ELSEWHERE: &[&str] = &[
    "messages",
    "prompt",
    "system",
    "instructions",
    "suffix",
    "echo",
    "tools",
    "documents",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "enable_thinking",
    "chat_template_kwargs",
    "continue_final_message",
    "output_config",
    "n_indent",
    "n_probs",
    "logprobs",
    "top_logprobs",
    "return_tokens",
    "response_fields",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "include_stop_str_in_output",
    "allowed_token_ids",
    "bad_words",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "min_tokens",
    "ignore_eos",
    "priority",
    "cache_salt",
    "frequency_penalty",
    "presence_penalty",
    "previous_response_id",
    "truncation",
    "modalities",
];
