//! Special tokens, languages, compression.

use brasa_speech::{SpeechError, compression_ratio, language_code, language_name};

use crate::golden::{GOLDEN, VOCABULARY, assert_close, cases, ids};

#[test]
fn special_tokens() {
    let (tokens, expected) = (VOCABULARY.tokens(), &GOLDEN["special"]);
    for (name, found) in [
        ("eot", tokens.eot),
        ("sot", tokens.sot),
        ("translate", tokens.translate),
        ("transcribe", tokens.transcribe),
        ("sot_lm", tokens.sot_lm),
        ("sot_prev", tokens.sot_prev),
        ("no_speech", tokens.no_speech),
        ("no_timestamps", tokens.no_timestamps),
        ("timestamp_begin", tokens.timestamp_begin),
    ] {
        assert_eq!(Some(u64::from(found)), expected[name].as_u64(), "{name}");
    }
    assert_eq!(tokens.non_speech, ids(&expected["non_speech"]));
    assert_eq!((tokens.languages, &tokens.never_first[..]), (99, &[220, 50257][..]));
}

#[test]
fn languages() {
    let tokens = VOCABULARY.tokens();
    assert_eq!(tokens.language("en").unwrap(), 50_259);
    assert_eq!(tokens.language(" German ").unwrap(), 50_261);
    assert_eq!(tokens.language("su").unwrap(), 50_357);
    assert_eq!(tokens.language_of(50_261), Some("de"));
    assert_eq!((tokens.language_of(50_258), tokens.language_of(50_358)), (None, None));
    assert_eq!((language_code("castilian"), language_name("es")), (Some("es"), Some("spanish")));
    // Cantonese came with large-v3.
    for name in ["yue", "klingon", ""] {
        assert!(matches!(tokens.language(name), Err(SpeechError::Language { .. })), "{name}");
    }
}

/// The compressor is another than zlib, and makes as many bytes.
#[test]
fn compression() {
    for case in cases("ratios") {
        let text = case["text"].as_str().unwrap();
        assert_close(compression_ratio(text), &case["ratio"], 1e-9, text);
    }
    assert!(compression_ratio("") < 1e-9);
}
