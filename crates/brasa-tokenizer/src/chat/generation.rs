//! The tag `generation`, which marks the model's own text in a template, for training.

/// The filter that puts marks around the model's own text.
pub const MARKS: &str = "written_by_the_model";
/// The mark before the model's own text, a private-use character.
pub const START: char = '\u{F0A2E}';
/// The mark after the model's own text, a private-use character.
pub const END: char = '\u{F0A2F}';

/// The source with each tag replaced by one that opens a scope and has no effect.
pub fn without_generation_tags(source: &str) -> String {
    retagged(source, "with", "endwith")
}

/// The source with each tag replaced by a filter that puts [`START`] and [`END`] around its text. `None` if the source has no
/// such tag.
pub fn with_generation_marks(source: &str) -> Option<String> {
    let marked = retagged(source, &format!("filter {MARKS}"), "endfilter");
    (marked != source).then_some(marked)
}

fn retagged(source: &str, open: &str, close: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag[2..].find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|char: char| char.is_whitespace() || char == '-' || char == '+');
        match word {
            "generation" => out.push_str(&tag[..end + 2].replace("generation", open)),
            "endgeneration" => out.push_str(&tag[..end + 2].replace("endgeneration", close)),
            // Only the opening is passed over: a string in the tag may hold `%}`.
            _ => {
                out.push_str("{%");
                rest = &tag[2..];
                continue;
            }
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}
