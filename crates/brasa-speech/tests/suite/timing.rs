//! Times of words.

use brasa_audio::transcript::{Segment, Word};
use brasa_speech::CrossScores;
use brasa_speech::timing::{
    TimedWord, alignment_matrix, median_filter, merge_punctuation, split_words, time_segments, warp,
};
use serde_json::Value;

use crate::golden::{VOCABULARY, assert_close, cases, floats, ids};

#[test]
fn paths() {
    for case in cases("paths") {
        let columns = case["columns"].as_u64().unwrap() as usize;
        let path = warp(&floats(&case["weights"]), columns);
        let wide = |path: &[usize]| path.iter().map(|&place| place as u32).collect::<Vec<_>>();
        assert_eq!(wide(&path.rows), ids(&case["rows"]), "{columns} columns");
        assert_eq!(wide(&path.columns), ids(&case["times"]), "{columns} columns");
    }
    assert_eq!(warp(&[], 5).rows, Vec::<usize>::new());
    let blind = warp(&[f32::NAN; 6], 3);
    assert_eq!((blind.rows.last(), blind.columns.last()), (Some(&1), Some(&2)), "no numbers make some path");
}

#[test]
fn medians() {
    for case in cases("medians") {
        assert_eq!(median_filter(&floats(&case["row"]), 7), floats(&case["expected"]));
    }
}

/// Two heads of three tokens, worked out by hand: the softmax of `ln 1, ln 3` is 1/4, 3/4.
#[test]
fn matrix() {
    let three = 3.0_f32.ln();
    let head = [0.0, three, 9.0, three, 0.0, 9.0, 0.0, three, 9.0];
    let scores = CrossScores { values: [head, head].concat(), heads: 2, tokens: 3 };
    let matrix = alignment_matrix(&scores, 2);
    // Column of 1/4, 3/4, 1/4: mean 5/12, deviation √(1/18).
    let (low, high) = (-1.0 / 2.0_f32.sqrt(), 2.0_f32.sqrt());
    for (found, expected) in matrix.iter().zip([low, -low, high, -high, low, -low]) {
        assert!((found - expected).abs() < 1e-5, "{matrix:?}");
    }
    let flat = CrossScores { values: vec![1.0; 12], heads: 1, tokens: 3 };
    assert!(alignment_matrix(&flat, 4).iter().all(|x| x.abs() < 1e-6), "heads that say nothing");
}

#[test]
fn words_of_languages() {
    for case in cases("splits") {
        let tokens = ids(&case["tokens"]);
        let language = case["language"].as_str().unwrap();
        let found = split_words(&VOCABULARY, &tokens, language).unwrap();
        let (words, groups): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let expected: Vec<&str> =
            case["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(&words[..words.len() - 1], expected, "{language}");
        let expected: Vec<_> = case["groups"].as_array().unwrap().iter().map(ids).collect();
        assert_eq!(groups, expected, "{language}");
    }
}

#[test]
fn punctuation() {
    for case in cases("merges") {
        let words = case["words"].as_array().unwrap().iter().zip(0_u32..);
        let mut words: Vec<TimedWord> = words
            .map(|(word, place)| TimedWord {
                word: word.as_str().unwrap().into(),
                tokens: vec![place],
                ..TimedWord::default()
            })
            .collect();
        merge_punctuation(&mut words);
        let found: Vec<_> = words.into_iter().map(|word| (word.word, word.tokens)).collect();
        let pair = |pair: &Value| (pair[0].as_str().unwrap().to_owned(), ids(&pair[1]));
        let expected: Vec<_> = case["expected"].as_array().unwrap().iter().map(pair).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn times_of_segments() {
    for (number, case) in cases("words").iter().enumerate() {
        let word = |word: &Value| TimedWord {
            word: word["word"].as_str().unwrap().into(),
            tokens: ids(&word["tokens"]),
            start_s: word["start"].as_f64().unwrap(),
            end_s: word["end"].as_f64().unwrap(),
            probability: 1.0,
        };
        let segment = |segment: &Value| Segment {
            start_s: segment["start"].as_f64().unwrap(),
            end_s: segment["end"].as_f64().unwrap(),
            tokens: ids(&segment["tokens"]),
            ..Segment::default()
        };
        let words = case["words"].as_array().unwrap().iter().map(word).collect();
        let mut segments: Vec<Segment> = case["segments"].as_array().unwrap().iter().map(segment).collect();
        let offset_s = case["segments"][0]["seek"].as_f64().unwrap() / 100.0;
        let before = case["spoken_until"].as_f64().unwrap();
        time_segments(&mut segments, words, offset_s, before, VOCABULARY.tokens().eot);
        for (found, expected) in segments.iter().zip(case["expected"].as_array().unwrap()) {
            let label = format!("case {number}: {found:?}");
            assert_close(found.start_s, &expected["start"], 1e-9, &label);
            assert_close(found.end_s, &expected["end"], 1e-9, &label);
            let words: &[Word] = found.words.as_deref().unwrap();
            let expected = expected["words"].as_array().unwrap();
            assert_eq!(words.len(), expected.len(), "{label}");
            for (found, expected) in words.iter().zip(expected) {
                assert_eq!(Some(found.text.as_str()), expected["word"].as_str(), "{label}");
                assert_close(found.start_s, &expected["start"], 1e-9, &label);
                assert_close(found.end_s, &expected["end"], 1e-9, &label);
            }
        }
    }
}
