//! The pre-tokenizers that `tokenizer.ggml.pre` names.
//!
//! The patterns are those of the models' own `tokenizer.json`. If that file is not public, they are llama.cpp's.

use crate::Result;
use crate::split::{DigitGroups, Splitter};

/// A pre-tokenizer: its cuts, and further properties that its name implies.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties, set by name in one table")]
pub struct Pre {
    /// The cuts, in order. Each makes every match a piece of its own.
    pub cuts: &'static [Cut],
    /// True if bytes are spelt in GPT-2's alphabet. If false, spaces are `▁` and unknown characters `<0xHH>`.
    pub byte_level: bool,
    /// True if a piece that is a token is not merged.
    pub ignore_merges: bool,
    /// True if BOS is added unless the file says otherwise.
    pub add_bos: bool,
    /// True if text is composed (NFC) first, as the model's own tokenizer does. GGUF has no key for this and llama.cpp does not do
    /// it, so for decomposed text these ids are the model's and not llama.cpp's.
    pub compose: bool,
}

/// One cut of a pre-tokenizer.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Pattern(&'static str),
    /// Groups of three from the right in runs of this class of digits.
    DigitGroups {
        class: &'static str,
        needs_word_end: bool,
    },
}

use Cut::Pattern;

/// GPT-2's pattern of words.
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// A pattern that makes each digit a piece.
pub const DIGIT: &str = r"\p{N}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const WORDS_OF_DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const WORDS_OF_SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
// Escaped, because it names letters that editors replace by their canonical equivalents.
const LETTERS_OF_DEEPSEEK: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";

const PLAIN: Pre =
    Pre { cuts: &[Pattern(GPT2)], byte_level: true, ignore_merges: false, add_bos: false, compose: false };
const LIKE_LLAMA3: Pre = Pre { cuts: &[Pattern(LLAMA3)], ..PLAIN };
const LIKE_QWEN2: Pre = Pre { cuts: &[Pattern(QWEN2)], ..PLAIN };
const SINGLE_DIGITS: Pre = Pre { cuts: &[Pattern(DIGIT), Pattern(GPT2)], ..PLAIN };
const NOT_POROS_MARKS: Pre = Pre { cuts: &[Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+")], ..PLAIN };
const LIKE_DEEPSEEK3: Pre = Pre {
    cuts: &[Pattern(r"\p{N}{1,3}"), Pattern(r"[一-龥぀-ゟ゠-ヿ]+"), Pattern(WORDS_OF_DEEPSEEK3)],
    ..PLAIN
};
const LINES_OF_SENTENCEPIECE: Pre = Pre { cuts: &[Pattern(r"[^\n]+|[\n]+")], byte_level: false, ..PLAIN };
/// The pre-tokenizer of files with `tokenizer.ggml.model` = `gemma4`.
pub const GEMMA4: Pre = Pre { add_bos: true, ..LINES_OF_SENTENCEPIECE };

/// The pre-tokenizer called `name`; `None` for an unknown name.
pub fn by_name(name: &str) -> Option<Pre> {
    Some(match name {
        "default" => Pre {
            cuts: &[
                Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
                Pattern(GPT2),
                Pattern(r"\p{N}+"),
                Pattern("[0-9][0-9][0-9]"),
            ],
            ..PLAIN
        },
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => Pre { ignore_merges: true, add_bos: true, ..LIKE_LLAMA3 },
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => LIKE_LLAMA3,
        "glm4" | "glm5" => Pre { ignore_merges: true, ..LIKE_LLAMA3 },
        "jais-2" => Pre {
            cuts: &[Pattern(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
            )],
            ..PLAIN
        },
        "deepseek-llm" => Pre {
            cuts: &[
                Pattern(r"[\r\n]"),
                Pattern(LETTERS_OF_DEEPSEEK),
                Pattern(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                Pattern(r"\s+$"),
                Pattern(r"[一-龥ࠀ-一가-퟿]+"),
                Pattern(r"\p{N}+"),
            ],
            ..PLAIN
        },
        "deepseek-coder" => Pre {
            cuts: &[
                Pattern(r"[\r\n]"),
                Pattern(r"\s?\p{L}+"),
                Pattern(r"\s?\p{P}+"),
                Pattern(r"[一-龥ࠀ-一가-퟿]+"),
                Pattern(r"\p{N}"),
            ],
            ..PLAIN
        },
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => LIKE_DEEPSEEK3,
        "spark2_5" => Pre {
            cuts: &[
                Pattern(r"\p{N}{1,3}"),
                Pattern(r"[一-龥぀-ゟ゠-ヿ]+"),
                Pattern(WORDS_OF_SPARK),
                Pattern(r"\p{N}"),
            ],
            ..PLAIN
        },
        "youtu" => Pre {
            cuts: &[
                Pattern(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
                Pattern(
                    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                ),
            ],
            ignore_merges: true,
            ..PLAIN
        },
        "falcon" => Pre {
            cuts: &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), Pattern(GPT2), Pattern("[0-9][0-9][0-9]")],
            ..PLAIN
        },
        "starcoder" | "refact" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            SINGLE_DIGITS
        }
        "command-r" => Pre { compose: true, ..SINGLE_DIGITS },
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de" | "a.x-4.0"
        | "mellum" | "modern-bert" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "jais" | "trillion"
        | "granite-docling" | "exaone4" => PLAIN,
        "mpt" | "olmo" => Pre { compose: true, ..PLAIN },
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" => Pre { compose: true, ..LIKE_QWEN2 },
        "stablelm2" | "hunyuan" | "solar-open" | "grok-2" => LIKE_QWEN2,
        "qwen35" => Pre { cuts: &[Pattern(QWEN35)], ..PLAIN },
        "poro-chat" | "bloom" | "gpt3-finnish" => NOT_POROS_MARKS,
        "viking" => {
            Pre { cuts: &[Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+"), Pattern(r"\p{N}")], ..PLAIN }
        }
        "tekken" => Pre { cuts: &[Pattern(TEKKEN)], ignore_merges: true, add_bos: true, ..PLAIN },
        "chameleon" => Pre {
            cuts: &[
                Pattern(r"<sentinel:[0-9]+>"),
                Pattern(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                Pattern(r"([\t\n]|    |  )"),
                Pattern(r"\p{N}"),
                Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
                Pattern(GPT2),
            ],
            add_bos: true,
            ..PLAIN
        },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => Pre { cuts: &[Pattern(GPT4O)], ..PLAIN },
        "granite-embed-multi-97m" => Pre { cuts: &[Pattern(GPT4O)], ignore_merges: true, ..PLAIN },
        "tiny_aya" | "cohere2moe" => {
            Pre { cuts: &[Cut::DigitGroups { class: r"\d", needs_word_end: true }, Pattern(GPT4O)], ..PLAIN }
        }
        "kimi-k2" => Pre { cuts: &[Pattern(KIMI)], ..PLAIN },
        "superbpe" => Pre {
            cuts: &[Pattern(r"\p{N}+"), Cut::DigitGroups { class: r"\d", needs_word_end: false }],
            ..PLAIN
        },
        "bailingmoe" | "bailingmoe2" | "llada-moe" => Pre {
            cuts: &[Pattern(
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            )],
            ..PLAIN
        },
        "seed-coder" => Pre {
            cuts: &[Pattern(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
            )],
            ..PLAIN
        },
        "ufakzeka" => Pre {
            cuts: &[Pattern(
                r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )],
            ..PLAIN
        },
        "afmoe" => Pre {
            cuts: &[
                Cut::DigitGroups { class: r"\p{N}", needs_word_end: false },
                Pattern(r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"),
                Pattern(WORDS_OF_DEEPSEEK3),
            ],
            ..PLAIN
        },
        "laguna" => Pre { cuts: &[Pattern(r"[^\n]+|[\n]+"), Pattern(QWEN2)], ..PLAIN },
        "exaone-moe" => Pre {
            cuts: &[Pattern(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )],
            ..PLAIN
        },
        "minicpm5" => Pre {
            cuts: &[
                Pattern(r"\p{N}{1,3}"),
                Pattern(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                ),
            ],
            ignore_merges: true,
            ..PLAIN
        },
        "gemma4" | "granite-embed-multi-311m" => GEMMA4,
        "sarvam-moe" => LINES_OF_SENTENCEPIECE,
        "whitespace" => Pre { cuts: &[Pattern(r"\S+")], byte_level: false, ..PLAIN },
        _ => return None,
    })
}

impl Pre {
    /// The cuts, compiled.
    pub fn splitters(&self) -> Result<Vec<Splitter>> {
        self.cuts
            .iter()
            .map(|cut| match cut {
                Pattern(pattern) => Splitter::isolated(pattern),
                Cut::DigitGroups { class, needs_word_end } => {
                    Ok(Splitter::digits(DigitGroups::new(class, *needs_word_end)?))
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../tests/pre/golden.json")).expect("golden")
    }

    fn names(group: &Value) -> impl Iterator<Item = &str> {
        group["names"].as_array().expect("names").iter().filter_map(Value::as_str)
    }

    fn pieces<'t>(splitters: &[Splitter], text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for splitter in splitters {
            let Splitter::Cut(cut) = splitter else { panic!("a step that does more than cut") };
            pieces = pieces.into_iter().flat_map(|piece| cut.pieces(piece).expect("cuts")).collect();
        }
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// Cuts of llama.cpp's own patterns (`tools/golden/pre_tokenizers.py`), in an engine that is not ours.
    #[test]
    fn every_name_cuts_as_in_llama_cpp() {
        let golden = golden();
        let texts: Vec<&str> =
            golden["texts"].as_array().expect("texts").iter().filter_map(Value::as_str).collect();
        let mut wrong = Vec::new();
        let mut seen = 0;
        for group in golden["groups"].as_array().expect("groups") {
            for name in names(group) {
                let pre = by_name(name).unwrap_or_else(|| panic!("{name} is not known"));
                let splitters = pre.splitters().expect("patterns");
                for (text, expected) in texts.iter().zip(group["cuts"].as_array().expect("cuts")) {
                    let (found, expected) = (pieces(&splitters, text), expected.as_array().expect("pieces"));
                    if !found.iter().eq(expected) {
                        wrong
                            .push(format!("{name}: {text:?}\n  found    {found:?}\n  expected {expected:?}"));
                    }
                }
                seen += 1;
            }
        }
        assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
        assert_eq!(seen, 91);
    }

    /// Patterns that never part: their alternatives differ, and what they match does not.
    const ALIKE: [[&str; 2]; 2] = [["bailingmoe", "qwen2"], ["minicpm5", "llama-bpe"]];

    /// If one name took another's pattern, a text would be cut otherwise.
    #[test]
    fn a_swapped_pattern_shows() {
        let golden = golden();
        let groups = golden["groups"].as_array().expect("groups");
        let patterns = |name: &str| by_name(name).map(|pre| format!("{:?}", pre.cuts));
        for group in groups {
            let first = names(group).next().expect("a name");
            for other in names(group) {
                let alike = ALIKE.iter().any(|[a, b]| {
                    [first, other].iter().any(|x| patterns(x) == patterns(a))
                        && [first, other].iter().any(|x| patterns(x) == patterns(b))
                });
                assert!(alike || patterns(first) == patterns(other), "no text parts {first} and {other}");
            }
        }
    }
}
