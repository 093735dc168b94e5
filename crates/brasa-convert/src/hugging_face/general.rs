//! `general.…`: name, size, licence, recommended sampling.

use brasa_formats::Checkpoint;
use brasa_formats::gguf::Metadata;
use brasa_models::RecommendedSampling;

use crate::model::OutTensor;
use crate::progress::tell;
use crate::{Event, Observer, Options, Result};

pub fn describe(
    metadata: &mut Metadata,
    checkpoint: &Checkpoint,
    options: &Options,
    tensors: &[OutTensor],
    observer: &mut Observer<'_>,
) -> Result<()> {
    let sampling = RecommendedSampling::of(checkpoint)?;
    sampling.write_gguf(metadata);
    for setting in &sampling.passed_over {
        tell(observer, Event::Warning(format!("{setting}: GGUF cannot recommend this")))?;
    }
    let given = options.name.clone();
    metadata.insert("general.name", given.unwrap_or_else(|| title(checkpoint)));
    metadata.insert("general.size_label", size_label(tensors));
    if let Some(card) = checkpoint.sidecar_text("README.md")? {
        licence(metadata, &card);
    }
    Ok(())
}

/// The directory's name as a title: `tiny-qwen3moe` becomes `Tiny Qwen3Moe`.
fn title(checkpoint: &Checkpoint) -> String {
    let path = checkpoint.path();
    let directory = if path.is_dir() { Some(path) } else { path.parent() };
    let resolved = directory.and_then(|directory| directory.canonicalize().ok());
    let name = resolved.as_deref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    title_of(name.unwrap_or("model"))
}

fn title_of(name: &str) -> String {
    let words = name.split(['-', ' ']).filter(|word| !word.is_empty());
    words.map(title_word).collect::<Vec<_>>().join(" ")
}

/// A word with a capital first letter. Words of mixed case (names), words that start with a digit (sizes), and versions such as
/// `v2` stay as they are.
fn title_word(word: &str) -> String {
    let lower = !word.contains(char::is_uppercase) && word.contains(char::is_lowercase);
    let version = word.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if !lower || version || word.starts_with(|c: char| c.is_ascii_digit()) {
        return word.to_owned();
    }
    let mut out = String::new();
    let mut after_letter = false;
    for c in word.chars() {
        if after_letter {
            out.push(c);
        } else {
            out.extend(c.to_uppercase());
        }
        after_letter = c.is_alphabetic();
    }
    out
}

/// Parameters in round figures; for experts, how many of what size.
fn size_label(tensors: &[OutTensor]) -> String {
    let (mut shared, mut of_expert, mut experts) = (0, 0, 0);
    for tensor in tensors {
        let elements = tensor.shape.iter().product::<usize>();
        match tensor.shape[..] {
            [count, _, _] if tensor.name.contains("_exps.") => {
                of_expert += elements / count.max(1);
                experts = count;
            }
            _ => shared += elements,
        }
    }
    let size = rounded(shared + of_expert);
    if experts > 0 { format!("{experts}x{size}") } else { size }
}

fn rounded(parameters: usize) -> String {
    let exact = parameters as f64;
    let (scaled, unit) = match parameters {
        0..=1_000_000 => (exact * 1e-3, "K"),
        1_000_001..=1_000_000_000 => (exact * 1e-6, "M"),
        1_000_000_001..=1_000_000_000_000 => (exact * 1e-9, "B"),
        _ => (exact * 1e-12, "T"),
    };
    // At least two figures.
    let whole = format!("{scaled:.0}");
    let decimals = 2_usize.saturating_sub(whole.trim_start_matches('0').len());
    format!("{scaled:.decimals$}{unit}")
}

/// The licence in the front matter of a model card.
fn licence(metadata: &mut Metadata, card: &str) {
    let mut lines = card.lines();
    if lines.next().map(str::trim) != Some("---") {
        return;
    }
    for line in lines.take_while(|line| line.trim() != "---") {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim().trim_matches(['"', '\'']);
        let known = matches!(key, "license" | "license_name" | "license_link");
        if known && !value.is_empty() {
            let key = if key == "license" { key.to_owned() } else { key.replace('_', ".") };
            metadata.insert(format!("general.{key}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles() {
        for (name, expected) in [
            ("tiny-qwen3moe", "Tiny Qwen3Moe"),
            ("lexicon-qwen3", "Lexicon Qwen3"),
            ("Llama-3.2-1B-Instruct", "Llama 3.2 1B Instruct"),
            ("phi-v1.5", "Phi v1.5"),
        ] {
            assert_eq!(title_of(name), expected);
        }
    }

    #[test]
    fn sizes_have_two_figures() {
        for (parameters, expected) in
            [(22_550_000, "23M"), (1_240_000_000, "1.2B"), (2_199_000, "2.2M"), (450_000, "450K")]
        {
            assert_eq!(rounded(parameters), expected);
        }
    }

    #[test]
    fn licences_come_from_the_front_matter() {
        let mut metadata = Metadata::new();
        licence(&mut metadata, "---\nlicense: apache-2.0\nlicense_link: \"x\"\n---\nlicense: no\n");
        assert_eq!(metadata.require::<&str>("general.license").unwrap(), "apache-2.0");
        assert_eq!(metadata.require::<&str>("general.license.link").unwrap(), "x");
    }
}
