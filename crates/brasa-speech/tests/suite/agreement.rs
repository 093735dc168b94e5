//! Words that are kept while somebody speaks.

use brasa_audio::transcript::Word;
use brasa_speech::Agreement;

/// Words of half a second each from `start_s` on.
fn words(start_s: f64, text: &str) -> Vec<Word> {
    let word = |(place, text): (usize, &str)| Word {
        text: format!(" {text}"),
        start_s: start_s + place as f64 * 0.5,
        end_s: start_s + place as f64 * 0.5 + 0.4,
        ..Word::default()
    };
    text.split_whitespace().enumerate().map(word).collect()
}

fn text(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect()
}

#[test]
fn what_two_transcripts_agree_on_is_kept() {
    let mut agreement = Agreement::default();
    for (transcript, kept, pending) in [
        ("the", "", " the"),
        ("the hungry box", " the", " hungry box"),
        ("the hungry fox jumps", " hungry", " fox jumps"),
        ("the hungry fox jumped over", " fox", " jumped over"),
        // What is kept is not revised, whatever comes later.
        ("a hungry fox jumped over it", " jumped over", " it"),
    ] {
        assert_eq!(text(&agreement.insert(words(0.0, transcript))), kept, "{transcript}");
        assert_eq!(text(agreement.pending()), pending, "{transcript}");
    }
    assert_eq!(text(&agreement.finish()), " it");
    assert_eq!(text(agreement.kept()), " the hungry fox jumped over it");
    assert_eq!(agreement.pending(), []);
}

/// The last words before a cut may be heard once more behind it; a word that is said twice stays.
#[test]
fn seams() {
    let mut agreement = Agreement::default();
    agreement.insert(words(0.0, "no no stop"));
    assert_eq!(text(&agreement.insert(words(0.0, "no no stop"))), " no no stop");
    // `stop` again, at a time that overlaps.
    let again = |tail: &str| [words(1.35, "stop"), words(1.6, tail)].concat();
    agreement.insert(again("go now"));
    assert_eq!(text(&agreement.insert(again("go now"))), " go now");
    agreement.insert(words(2.6, "now then"));
    assert_eq!(text(&agreement.insert(words(2.6, "now then"))), " now then");
}
