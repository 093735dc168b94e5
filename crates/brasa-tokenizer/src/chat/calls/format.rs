//! The form in which a model writes calls of tools.

use super::constraint::{Call, Writing};
use super::headed::{deepseek, harmony, kimi, mistral};
use super::literal::{FUNCTION_GEMMA, GEMMA_4, PYTHON};
use super::region::{Form, Otherwise};
use super::tagged::{GLM, MINIMAX, QWEN};
use crate::Tokenizer;

/// The form in which a model writes calls of tools.
#[derive(Clone, Copy, Debug)]
pub struct ToolFormat(&'static Row);

/// A form of calls: how to recognise it, and how to read and write it.
#[derive(Debug)]
struct Row {
    name: &'static str,
    /// Texts that the chat template of such a model contains, all of them.
    template: &'static [&'static str],
    /// Tokens that only the vocabulary of such a model has, all of them; empty if no token identifies the form.
    vocabulary: &'static [&'static str],
    marks: &'static [Mark],
    /// Tokens within calls.
    inner: &'static [&'static str],
    /// How such a model writes calls, for a grammar; `None` if a grammar does not help.
    writing: Option<Writing>,
    /// True if a call in the thoughts ends the thoughts.
    ends_thoughts: bool,
}

/// A text before or after a call.
#[derive(Debug)]
pub struct Mark {
    pub text: &'static str,
    pub place: Place,
    /// The form of the text after the mark; `None` for a mark that ends a call.
    pub opens: Option<Form>,
    /// Number of bytes at the mark's end that also belong to the call.
    pub shared_bytes: usize,
}

/// The positions at which a mark is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Anywhere,
    /// At the beginning of a line, or after a call.
    Line,
    /// After a call, with only white space in between.
    AfterCall,
}

/// A mark before a call, at any position.
const fn opens(text: &'static str, form: Form) -> Mark {
    Mark { text, place: Place::Anywhere, opens: Some(form), shared_bytes: 0 }
}

/// A mark before a call, at the beginning of a line.
const fn opens_line(text: &'static str, form: Form, shared_bytes: usize) -> Mark {
    Mark { text, place: Place::Line, opens: Some(form), shared_bytes }
}

/// A mark between two calls.
const fn joins(text: &'static str, form: Form, shared_bytes: usize) -> Mark {
    Mark { text, place: Place::AfterCall, opens: Some(form), shared_bytes }
}

/// A mark after a call.
const fn closes(text: &'static str) -> Mark {
    Mark { text, place: Place::AfterCall, opens: None, shared_bytes: 0 }
}

/// A superfluous brace after a call.
const BRACE: Mark = closes("}");

/// Calls with texts around each of them.
const fn each(before: &'static str, call: Call, after: &'static str, between: &'static str) -> Writing {
    Writing { open: "", before, call, after, between, close: "", is_marked: true }
}

/// Calls with texts around all of them.
const fn all(open: &'static str, call: Call, between: &'static str, close: &'static str) -> Writing {
    Writing { open, before: "", call, after: "", between, close, is_marked: true }
}

/// A call as an object with these keys, after other members.
const fn object_of(other: &'static str, name: &'static str, arguments: &'static str) -> Call {
    Call::Object { other, name, arguments }
}

const JSON: Form = Form::Json { otherwise: Otherwise::Nothing };
const PYTHONIC: Form = Form::Json { otherwise: Otherwise::Python };
const MISTRAL: Form = Form::Json { otherwise: Otherwise::Headed(mistral) };
const DEEPSEEK: Form = Form::Json { otherwise: Otherwise::Headed(deepseek) };
const KIMI: Form = Form::Json { otherwise: Otherwise::Headed(kimi) };
const HARMONY: Form = Form::Json { otherwise: Otherwise::Headed(harmony) };

/// The form for models without tools in their template: a JSON object on a line of its own, within a code block or outside.
const GENERIC: Row = Row {
    name: "generic",
    template: &[],
    vocabulary: &[],
    marks: &[
        opens_line("{", JSON, 1),
        opens_line("[", JSON, 1),
        opens_line("```json", JSON, 0),
        opens_line("```tool_call", JSON, 0),
        joins(",", JSON, 0),
        BRACE,
        closes("]"),
        closes("```"),
    ],
    inner: &[],
    writing: Some(Writing { is_marked: false, ..each("", object_of("", "name", "parameters"), "", "\n") }),
    ends_thoughts: false,
};

/// The forms of all known families. The first one that fits a model is used.
const ROWS: &[Row] = &[
    Row {
        name: "gpt-oss",
        template: &["<|channel|>commentary"],
        vocabulary: &["<|channel|>", "<|constrain|>", "<|call|>"],
        marks: &[
            opens("<|start|>assistant<|channel|>commentary to=functions.", HARMONY),
            opens("<|end|><|start|>assistant<|channel|>commentary to=functions.", HARMONY),
            opens("<|channel|>commentary to=functions.", HARMONY),
            opens("<|start|>assistant<|channel|>analysis to=functions.", HARMONY),
            opens("<|end|><|start|>assistant<|channel|>analysis to=functions.", HARMONY),
            opens("<|channel|>analysis to=functions.", HARMONY),
            opens("<|start|>assistant to=functions.", HARMONY),
            opens("<|end|><|start|>assistant to=functions.", HARMONY),
            opens_line("to=functions.", HARMONY, 0),
            BRACE,
            closes("<|call|>"),
        ],
        inner: &["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"],
        writing: None,
        ends_thoughts: true,
    },
    Row {
        name: "gemma-4",
        template: &["<|tool_call>call:"],
        vocabulary: &["<|tool_call>", "<tool_call|>"],
        marks: &[
            opens("<|tool_call>call:", Form::Literal(&GEMMA_4)),
            closes("<tool_call|>"),
            closes("<|tool_response>"),
        ],
        inner: &["<|tool_call>", "<|\"|>"],
        writing: Some(each("<|tool_call>call:", Call::Literal(&GEMMA_4), "<tool_call|>", "")),
        ends_thoughts: false,
    },
    Row {
        name: "functiongemma",
        template: &["<start_function_call>"],
        vocabulary: &["<start_function_call>", "<end_function_call>"],
        marks: &[
            opens("<start_function_call>call:", Form::Literal(&FUNCTION_GEMMA)),
            closes("<end_function_call>"),
            closes("<start_function_response>"),
        ],
        inner: &["<start_function_call>", "<escape>"],
        writing: Some(each(
            "<start_function_call>call:",
            Call::Literal(&FUNCTION_GEMMA),
            "<end_function_call>",
            "",
        )),
        ends_thoughts: false,
    },
    Row {
        name: "minimax-m2",
        template: &["minimax:tool_call", "invoke name="],
        vocabulary: &["<minimax:tool_call>", "</minimax:tool_call>"],
        marks: &[
            opens("<minimax:tool_call>", Form::Tagged(&MINIMAX)),
            joins("<invoke name=\"", Form::Tagged(&MINIMAX), "<invoke name=\"".len()),
            closes("</minimax:tool_call>"),
        ],
        inner: &[],
        writing: Some(all("<minimax:tool_call>\n", Call::Tagged(&MINIMAX), "\n", "\n</minimax:tool_call>")),
        ends_thoughts: false,
    },
    Row {
        name: "glm",
        template: &["<arg_key>", "<arg_value>"],
        vocabulary: &["<arg_key>", "<arg_value>"],
        marks: &[opens("<tool_call>", Form::Tagged(&GLM))],
        inner: &["</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        writing: Some(each("<tool_call>", Call::Tagged(&GLM), "", "\n")),
        ends_thoughts: false,
    },
    Row {
        name: "seed-oss",
        template: &["seed:tool_call"],
        vocabulary: &["<seed:tool_call>"],
        marks: &[opens("<seed:tool_call>", Form::Tagged(&QWEN)), closes("</seed:tool_call>")],
        inner: &[],
        writing: Some(each("<seed:tool_call>\n", Call::Tagged(&QWEN), "\n</seed:tool_call>", "\n")),
        ends_thoughts: false,
    },
    Row {
        name: "qwen3-coder",
        template: &["<function=", "<parameter="],
        vocabulary: &[],
        marks: &[
            opens("<tool_call>", Form::Tagged(&QWEN)),
            // The first tag is left out at times.
            Mark {
                text: "<function=",
                place: Place::Line,
                opens: Some(Form::Tagged(&QWEN)),
                shared_bytes: "<function=".len(),
            },
            closes("</tool_call>"),
        ],
        inner: &[],
        writing: Some(each("<tool_call>\n", Call::Tagged(&QWEN), "\n</tool_call>", "\n")),
        ends_thoughts: true,
    },
    Row {
        name: "kimi-k2",
        template: &["<|tool_call_argument_begin|>"],
        vocabulary: &["<|tool_call_argument_begin|>"],
        marks: &[
            opens("<|tool_calls_section_begin|><|tool_call_begin|>", KIMI),
            // The first tag is left out at times.
            opens("<|tool_call_begin|>", KIMI),
            BRACE,
            closes("<|tool_call_end|>"),
            closes("<|tool_calls_section_end|>"),
        ],
        inner: &["<|tool_call_argument_begin|>"],
        writing: Some(Writing {
            open: "<|tool_calls_section_begin|>",
            close: "<|tool_calls_section_end|>",
            ..each(
                "<|tool_call_begin|>functions.",
                Call::Numbered(":", "<|tool_call_argument_begin|>"),
                "<|tool_call_end|>",
                "",
            )
        }),
        ends_thoughts: true,
    },
    Row {
        name: "deepseek",
        template: &["<｜tool▁calls▁begin｜>"],
        vocabulary: &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"],
        marks: &[
            opens("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", DEEPSEEK),
            opens("<｜tool▁call▁begin｜>", DEEPSEEK),
            // Templates that do not show tools leave it to Brasa, which asks for the general form.
            opens_line("{", JSON, 1),
            opens_line("```json", JSON, 0),
            BRACE,
            closes("```"),
            closes("<｜tool▁call▁end｜>"),
            closes("<｜tool▁calls▁end｜>"),
        ],
        inner: &["<｜tool▁sep｜>"],
        writing: Some(Writing {
            open: "<｜tool▁calls▁begin｜>",
            close: "<｜tool▁calls▁end｜>",
            ..each("<｜tool▁call▁begin｜>", Call::Headed("<｜tool▁sep｜>"), "<｜tool▁call▁end｜>", "")
        }),
        ends_thoughts: false,
    },
    Row {
        name: "mistral",
        template: &["[TOOL_CALLS]"],
        vocabulary: &["[TOOL_CALLS]"],
        marks: &[opens("[TOOL_CALLS]", MISTRAL), joins(",", JSON, 0), BRACE, closes("]")],
        inner: &["[ARGS]", "[CALL_ID]"],
        writing: Some(each("[TOOL_CALLS]", Call::Headed("[ARGS]"), "", "")),
        ends_thoughts: false,
    },
    Row {
        name: "lfm2",
        template: &["<|tool_call_start|>"],
        vocabulary: &["<|tool_call_start|>", "<|tool_call_end|>"],
        marks: &[
            opens("<|tool_call_start|>", PYTHONIC),
            joins(",", PYTHONIC, 0),
            closes("]"),
            closes("<|tool_call_end|>"),
        ],
        inner: &[],
        writing: Some(all("<|tool_call_start|>[", Call::Literal(&PYTHON), ", ", "]<|tool_call_end|>")),
        ends_thoughts: false,
    },
    Row {
        name: "command-r",
        template: &["<|START_ACTION|>"],
        vocabulary: &["<|START_ACTION|>", "<|END_ACTION|>"],
        marks: &[
            opens("<|START_ACTION|>", JSON),
            joins(",", JSON, 0),
            BRACE,
            closes("]"),
            closes("<|END_ACTION|>"),
        ],
        inner: &[],
        writing: Some(all(
            "<|START_ACTION|>[\n",
            object_of("\"tool_call_id\": \"0\", ", "tool_name", "parameters"),
            ",\n",
            "\n]<|END_ACTION|>",
        )),
        ends_thoughts: false,
    },
    Row {
        name: "nemotron-nano",
        template: &["<TOOLCALL>"],
        vocabulary: &[],
        marks: &[opens("<TOOLCALL>", JSON), joins(",", JSON, 0), BRACE, closes("]"), closes("</TOOLCALL>")],
        inner: &[],
        writing: Some(all("<TOOLCALL>[", object_of("", "name", "arguments"), ", ", "]</TOOLCALL>")),
        ends_thoughts: false,
    },
    Row {
        name: "phi-4-mini",
        template: &["<|tool|>"],
        vocabulary: &["<|tool_call|>", "<|/tool_call|>"],
        marks: PHI,
        inner: &[],
        writing: Some(all("<|tool_call|>[", object_of("", "name", "arguments"), ", ", "]<|/tool_call|>")),
        ends_thoughts: false,
    },
    Row {
        name: "granite-3",
        template: &["<|tool_call|>"],
        vocabulary: &[],
        marks: PHI,
        inner: &[],
        writing: Some(all("<|tool_call|>[", object_of("", "name", "arguments"), ", ", "]")),
        ends_thoughts: false,
    },
    Row {
        name: "hermes",
        template: &["<tool_call>"],
        vocabulary: &[],
        marks: HERMES,
        inner: &[],
        writing: Some(each("<tool_call>\n", object_of("", "name", "arguments"), "\n</tool_call>", "\n")),
        ends_thoughts: false,
    },
    Row {
        name: "llama-3",
        template: &["ipython", "\"parameters\": "],
        vocabulary: &[],
        marks: LLAMA,
        inner: &[],
        writing: Some(Writing {
            is_marked: false,
            ..each("", object_of("", "name", "parameters"), "", "; ")
        }),
        ends_thoughts: false,
    },
    Row {
        name: "llama-3",
        template: &["<|python_tag|>"],
        vocabulary: &["<|python_tag|>"],
        marks: LLAMA,
        inner: &[],
        writing: Some(Writing {
            is_marked: false,
            ..each("", object_of("", "name", "parameters"), "", "; ")
        }),
        ends_thoughts: false,
    },
    Row {
        name: "llama-4",
        template: &["<|python_start|>"],
        vocabulary: &["<|python_start|>", "<|python_end|>"],
        marks: LLAMA,
        inner: &[],
        writing: Some(Writing { is_marked: false, ..all("[", Call::Literal(&PYTHON), ", ", "]") }),
        ends_thoughts: false,
    },
    // Vocabularies of several families have these, so templates and other tokens tell first.
    Row {
        name: "hermes",
        template: &["<tool_call>", "</tool_call>"],
        vocabulary: &["<tool_call>", "</tool_call>"],
        marks: HERMES,
        inner: &[],
        writing: Some(each("<tool_call>\n", object_of("", "name", "arguments"), "\n</tool_call>", "\n")),
        ends_thoughts: false,
    },
];

const HERMES: &[Mark] = &[opens("<tool_call>", JSON), BRACE, closes("</tool_call>")];

const PHI: &[Mark] = &[
    opens("<|tool_call|>", JSON),
    opens_line("functools", JSON, 0),
    joins(",", JSON, 0),
    BRACE,
    closes("]"),
    closes("<|/tool_call|>"),
];

const LLAMA: &[Mark] = &[
    opens("<|python_tag|>", PYTHONIC),
    opens("<|python_start|>", PYTHONIC),
    opens_line("{", JSON, 1),
    opens_line("[", PYTHONIC, 1),
    joins(";", JSON, 0),
    joins(",", PYTHONIC, 0),
    BRACE,
    closes("]"),
    closes("<|python_end|>"),
];

impl ToolFormat {
    /// Finds a model's form: by its chat template's source, else by its vocabulary. A model whose template has no tools writes JSON
    /// objects.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> Self {
        let written =
            |row: &&Row| template.is_some_and(|source| row.template.iter().all(|text| source.contains(text)));
        let has_all = |row: &&Row| {
            let mut tokens = row.vocabulary.iter().map(|token| tokenizer.token_to_id(token));
            tokens.len() > 0 && tokens.all(|id| id.is_some())
        };
        let knows_tools = template.is_some_and(|source| source.contains("tools"));
        let row = ROWS.iter().find(written);
        let row = row.or_else(|| ROWS.iter().filter(|_| knows_tools).find(has_all));
        Self(row.unwrap_or(&GENERIC))
    }

    /// The form with this [`name`](Self::name).
    pub fn by_name(name: &str) -> Option<Self> {
        ROWS.iter().chain([&GENERIC]).find(|row| row.name == name).map(Self)
    }

    /// The form's name: that of a model family that writes it.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Ids of tokens that are marks of the form. Some are control tokens, which a text leaves out unless requested
    /// ([`DecodeStream::showing`](crate::DecodeStream::showing)).
    pub fn token_ids(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let marks = self.0.marks.iter().map(|mark| &mark.text);
        let ids = marks.chain(self.0.inner).filter_map(|token| tokenizer.token_to_id(token));
        // A token that ends the answer is no part of its text, though Gemma 4 and gpt-oss end calls with one.
        ids.filter(|&id| !tokenizer.is_end_of_generation(id)).collect()
    }

    pub(super) fn marks(self) -> &'static [Mark] {
        self.0.marks
    }

    pub(super) fn writing(self) -> Option<Writing> {
        self.0.writing
    }

    /// True if a mark shows where calls begin. If false, an answer that begins like a call is one.
    pub(super) fn is_marked(self) -> bool {
        self.0.writing.is_some_and(|writing| writing.is_marked)
    }

    pub(super) fn ends_thoughts(self) -> bool {
        self.0.ends_thoughts
    }
}

impl PartialEq for ToolFormat {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}
