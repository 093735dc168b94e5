//! Vocabularies of published models, and the ids that the models' own tokenizers give to difficult texts.

use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer, TokenizerError};

use crate::common;

fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    let texts = std::fs::read_to_string(common::models().join("tokenizers").join(format!("{name}.gguf.inp")))
        .expect("texts");
    let ids = std::fs::read_to_string(common::models().join("tokenizers").join(format!("{name}.gguf.out")))
        .expect("ids");
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<Vec<u32>> =
        ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().expect("id")).collect()).collect();
    // The file ends with a separator, after which no text follows.
    texts.into_iter().map(str::to_owned).zip(ids).collect()
}

/// How the text comes back.
enum Back {
    Same,
    /// Unknown characters and the distinction of white space are lost.
    Words,
}

fn check(name: &str, back: &Back) {
    let tokenizer = common::tokenizer(name);
    let cases = cases(name);
    assert!(cases.len() > 40, "{name}: {} cases", cases.len());
    for (text, expected) in cases {
        let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No).expect("encode");
        assert_eq!(ids, expected, "{name}: ids of {text:?}");
        let decoded = tokenizer.decode(&ids, false).expect("decode");
        match back {
            Back::Same => assert_eq!(decoded, text, "{name}: text of {ids:?}"),
            Back::Words => {
                let words = |text: &str| text.to_lowercase().split_whitespace().collect::<String>();
                let (decoded, text) = (words(&decoded), words(&text));
                if text.is_ascii() {
                    assert_eq!(decoded, text, "{name}: text of {ids:?}");
                }
            }
        }
        let mut stream = tokenizer.decode_stream(false);
        let mut streamed = String::new();
        for id in &ids {
            streamed.push_str(&stream.push(*id).expect("known id"));
        }
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, decoded, "{name}: streamed text of {ids:?}");
    }
}

#[test]
fn bert_bge() {
    check("ggml-vocab-bert-bge", &Back::Words);
}

#[test]
fn deepseek_coder() {
    check("ggml-vocab-deepseek-coder", &Back::Same);
}

#[test]
fn gemma_4() {
    check("ggml-vocab-gemma-4", &Back::Same);
}

#[test]
fn gpt_2() {
    check("ggml-vocab-gpt-2", &Back::Same);
}

#[test]
fn llama_bpe() {
    check("ggml-vocab-llama-bpe", &Back::Same);
}

#[test]
fn llama_spm() {
    check("ggml-vocab-llama-spm", &Back::Same);
}

/// XLM-R's vocabulary and table of characters; llama.cpp has no ids beside it, so they are those that its library gives to
/// the texts of `bert-bge`.
#[test]
fn nomic_bert_moe() {
    check("ggml-vocab-nomic-bert-moe", &Back::Words);
}

#[test]
fn phi_3() {
    check("ggml-vocab-phi-3", &Back::Same);
}

#[test]
fn qwen2() {
    check("ggml-vocab-qwen2", &Back::Same);
}

#[test]
fn starcoder() {
    check("ggml-vocab-starcoder", &Back::Same);
}

/// Every name that llama.cpp knows cuts text and gives it back; unknown names are refused, and overridden.
#[test]
fn every_pre_tokenizer_name() {
    const NAMES: &str = "default llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx \
        smaug-bpe chatglm-bpe glm4 glm5 jais-2 deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense joyai-llm hy_v4 \
        spark2_5 youtu falcon starcoder refact smollm codeshell exaone minerva-7b mellum2 command-r gpt-2 phi-2 jina-es \
        jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code roberta-bpe jais \
        trillion granite-docling exaone4 mpt olmo qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan \
        solar-open grok-2 qwen35 poro-chat bloom gpt3-finnish viking tekken chameleon gpt-4o llama4 kanana2 talkie \
        minimax-m2 granite-embed-multi-97m tiny_aya cohere2moe kimi-k2 superbpe bailingmoe bailingmoe2 llada-moe \
        seed-coder ufakzeka afmoe laguna exaone-moe minicpm5";
    let mut vocabulary = common::vocabulary("ggml-vocab-gpt-2");
    // The bytes and the first merges are enough to cut and to give back any text.
    vocabulary.tokens.truncate(356);
    vocabulary.token_types.truncate(356);
    vocabulary.merges.truncate(100);
    let text = "Don't  stop\n\nthe 1234567 cats, naïve 漢字かな 한국어 <|x|>!\t  ok   ";
    for name in NAMES.split_whitespace() {
        let tokenizer = Tokenizer::from_gguf(&vocabulary, Some(name)).expect(name);
        let ids = tokenizer.encode(text, AddSpecial::No, ParseSpecial::No).expect(name);
        assert_eq!(tokenizer.decode(&ids, false).expect(name), text, "{name}");
    }
    // Without byte-level spelling GPT-2's vocabulary does not fit; these must only be known.
    for name in ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"] {
        Tokenizer::from_gguf(&vocabulary, Some(name)).expect(name);
    }
    vocabulary.pre = Some("no-such".to_owned());
    let error = Tokenizer::from_gguf(&vocabulary, None).expect_err("unknown");
    assert!(matches!(error, TokenizerError::Unsupported { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("tokenizer.ggml.pre `no-such` is not supported\nhint: name a pre-tokenizer")
    );
    assert!(Tokenizer::from_gguf(&vocabulary, Some("gpt-2")).is_ok());
}

/// Digits in threes from the right, where a model wants that.
#[test]
fn digits_from_the_right() {
    let vocabulary = common::vocabulary("ggml-vocab-gpt-2");
    let pieces = |pre: &str, text: &str| -> Vec<String> {
        let tokenizer = Tokenizer::from_gguf(&vocabulary, Some(pre)).expect(pre);
        let ids = tokenizer.encode(text, AddSpecial::No, ParseSpecial::No).expect(pre);
        ids.iter().map(|id| tokenizer.piece(*id).expect("piece")).collect()
    };
    for pre in ["superbpe", "tiny_aya", "afmoe"] {
        assert_eq!(pieces(pre, "1100200"), ["1", "100", "200"], "{pre}");
        assert_eq!(pieces(pre, "100 200"), ["100", " ", "200"], "{pre}");
    }
    // A letter behind the digits is no word boundary, so the next pattern cuts them from the left.
    assert_eq!(pieces("tiny_aya", "2001x"), ["200", "1", "x"]);
    assert_eq!(pieces("afmoe", "1200x"), ["1", "200", "x"]);
}
