/// Replaces the tag `generation`, which marks what to train on, by one that opens a scope and does nothing.
pub fn without_generation_tags(source: &str) -> String {
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
            "generation" => out.push_str(&tag[..end + 2].replace("generation", "with")),
            "endgeneration" => out.push_str(&tag[..end + 2].replace("endgeneration", "endwith")),
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
