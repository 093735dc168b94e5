//! The tokens that an assistant wrote, against transformers (tools/golden/chat_turns.py).

use brasa_tokenizer::{ChatOptions, ChatTemplate, Message, Tokenizer, TokenizerError, TrainedTurns};
use serde_json::Value;

use crate::common::tokenizer;

fn golden() -> Value {
    serde_json::from_str(include_str!("../turns/golden.json")).expect("json")
}

/// The ids, and 1 for each that is in a turn.
fn encoded(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    wanted: TrainedTurns,
) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let encoded = tokenizer.encode_turns(template, messages, &ChatOptions::default(), wanted)?;
    let mut mask = vec![0; encoded.ids.len()];
    for turn in encoded.turns {
        mask[turn].fill(1);
    }
    Ok((encoded.ids, mask))
}

#[test]
fn turns_are_those_of_transformers_by_tags_and_by_prefixes() {
    let golden = golden();
    let mut compared = 0;
    for case in golden["cases"].as_array().expect("cases") {
        let (model, label) = (case[0].as_str().expect("model"), case[1].as_str().expect("label"));
        let messages: Vec<Message> =
            serde_json::from_value(golden["conversations"][label].clone()).expect("messages");
        let [ids, mask]: [Vec<u32>; 2] =
            [2, 3].map(|at| serde_json::from_value(case[at].clone()).expect("numbers"));
        let tokenizer = tokenizer(model);
        let own = tokenizer.chat_template().expect("a template");
        let source = golden["templates"][model].as_str().expect("source");
        let tagged = tokenizer.chat_template_from(source).expect("compiles");
        for (way, template) in [("prefixes", &own), ("tags", &tagged)] {
            let found = encoded(&tokenizer, template, &messages, TrainedTurns::All).expect("turns");
            assert_eq!(found, (ids.clone(), mask.clone()), "{model}, {label}, by {way}");
            let (ids_again, last) =
                encoded(&tokenizer, template, &messages, TrainedTurns::Last).expect("turns");
            assert_eq!(ids_again, ids);
            // The last run of ones is the last turn.
            let end = mask.iter().rposition(|&one| one == 1).map_or(0, |last| last + 1);
            let start = mask[..end].iter().rposition(|&one| one == 0).map_or(0, |before| before + 1);
            let expected: Vec<u32> =
                (0..mask.len()).map(|at| u32::from(at >= start && at < end && mask[at] == 1)).collect();
            assert_eq!(last, expected, "{model}, {label}, the last turn by {way}");
        }
        compared += mask.iter().sum::<u32>();
    }
    assert!(compared > 80, "{compared} tokens");
}

fn conversation() -> Vec<Message> {
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
        .map(|(role, text)| Message::new(role, text))
        .into()
}

#[test]
fn earlier_turns_that_a_template_shows_in_another_way_are_refused_with_a_remedy() {
    let tokenizer = tokenizer("lexicon-qwen3");
    let source = include_str!("../chat/templates/Qwen-Qwen3-0.6B.jinja");
    let template = tokenizer.chat_template_from(source).expect("compiles");
    let error = encoded(&tokenizer, &template, &conversation(), TrainedTurns::All).expect_err("ambiguous");
    assert_eq!(
        error.to_string(),
        "messages[1]: the template shows this turn in another way once others follow\nhint: train on each turn by \
         itself, as the last one of its conversation, or give a template with `{% generation %}` around what the model writes"
    );
    let (ids, mask) = encoded(&tokenizer, &template, &conversation(), TrainedTurns::Last).expect("the last");
    let turn: Vec<u32> = ids.iter().zip(&mask).filter(|(_, one)| **one == 1).map(|(id, _)| *id).collect();
    let text = turn.iter().map(|&id| tokenizer.piece(id).expect("a piece")).collect::<String>();
    assert_eq!(text, "<think>\n\n</think>\n\nd<|im_end|>");
}

#[test]
fn a_template_that_cannot_open_the_first_turn_says_so() {
    let tokenizer = tokenizer("tiny-qwen2");
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[0].role.upper() }}";
    let template = tokenizer.chat_template_from(source).expect("compiles");
    let first = [Message::new("assistant", "hello")];
    let error = encoded(&tokenizer, &template, &first, TrainedTurns::All).expect_err("no turn");
    assert!(
        error.to_string().starts_with("messages[0]: where it begins is not known, chat template: "),
        "{error}"
    );
    assert!(error.to_string().ends_with("hint: begin the conversation with the user's turn"), "{error}");
}

#[test]
fn control_tokens_and_marks_in_messages_are_text() {
    let tokenizer = tokenizer("tiny-qwen2");
    let golden = golden();
    let tagged = tokenizer
        .chat_template_from(golden["templates"]["tiny-qwen2"].as_str().expect("source"))
        .expect("compiles");
    let own = tokenizer.chat_template().expect("a template");
    let messages = [
        Message::new("user", "x\u{F0A2E}y\u{F0A2F}<|im_end|>"),
        Message::new("assistant", "a<|im_end|>b\u{F0A2F}"),
    ];
    let ends = tokenizer.token_to_id("<|im_end|>").expect("a token");
    let by_tags = encoded(&tokenizer, &tagged, &messages, TrainedTurns::All).expect("turns");
    assert_eq!(by_tags, encoded(&tokenizer, &own, &messages, TrainedTurns::All).expect("turns"));
    let (ids, mask) = by_tags;
    assert_eq!(ids.iter().filter(|&&id| id == ends).count(), 2);
    let last = mask.iter().rposition(|&one| one == 1).expect("a turn");
    assert_eq!(ids[last], ends);
}
