//! The rules by which tokens are forbidden.

use brasa_speech::{Rules, Timestamps, TranscribeOptions};

use crate::golden::{VOCABULARY, cases, ids};
use crate::stub::logits;

/// FNV-1a of the numbers of all tokens that are not forbidden.
fn hash(row: &[f32]) -> u64 {
    let allowed = (0_u32..).zip(row).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    u64::from(allowed.fold(0x811C_9DC5_u32, |hash, (token, _)| (hash ^ token).wrapping_mul(0x0100_0193)))
}

#[test]
fn what_histories_allow() {
    let start = [50_258, 50_259, 50_359];
    for case in cases("rules") {
        let drawn = ids(&case["drawn"]);
        let timestamps = case["timestamps"].as_bool().unwrap();
        let kind = if timestamps { Timestamps::Segments } else { Timestamps::None };
        let options = TranscribeOptions { timestamps: kind, ..TranscribeOptions::default() };
        let tokens = [&start, &drawn[..]].concat();
        let mut row = logits(case["seed"].as_u64().unwrap() as u32, &tokens, 0);
        for logit in &mut row[50_364..] {
            *logit += case["lift"].as_f64().unwrap() as f32;
        }
        Rules::new(VOCABULARY.tokens(), &options).apply(&mut row, &drawn);
        let allowed = row.iter().filter(|logit| **logit > f32::NEG_INFINITY).count();
        let best = (0..row.len()).reduce(|best, next| if row[next] > row[best] { next } else { best });
        let label = format!("{drawn:?}, timestamps {timestamps}");
        assert_eq!(Some(allowed as u64), case["allowed"].as_u64(), "{label}");
        assert_eq!(Some(hash(&row)), case["hash"].as_u64(), "{label}");
        assert_eq!(best.map(|best| best as u64), case["best"].as_u64(), "{label}");
    }
}

#[test]
fn hotwords_are_likelier() {
    let biased = TranscribeOptions {
        logit_bias: [(400, 3.5), (50_359, 9.0)].into(),
        timestamps: Timestamps::None,
        ..TranscribeOptions::default()
    };
    let [mut plain, mut row] = [(); 2].map(|()| logits(1, &[1, 2], 0));
    Rules::new(
        VOCABULARY.tokens(),
        &TranscribeOptions { timestamps: Timestamps::None, ..TranscribeOptions::default() },
    )
    .apply(&mut plain, &[500]);
    Rules::new(VOCABULARY.tokens(), &biased).apply(&mut row, &[500]);
    let different: Vec<usize> =
        (0..row.len()).filter(|&at| row[at].to_bits() != plain[at].to_bits()).collect();
    assert_eq!(different, [400], "a bias does not allow what is forbidden");
    assert!((row[400] - plain[400] - 3.5).abs() < 1e-6);
}
