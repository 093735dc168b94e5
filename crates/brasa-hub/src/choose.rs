//! The files of a repository that make one model.

use std::collections::BTreeMap;

use crate::name::Wanted;
use crate::{HubError, Result};

/// The files of a model.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// GGUF files; the first is the one to open.
    Gguf(Vec<String>),
    /// A checkpoint: a folder with these files.
    Folder(Vec<String>),
}

impl Choice {
    /// The names of the files.
    pub fn files(&self) -> &[String] {
        match self {
            Self::Gguf(files) | Self::Folder(files) => files,
        }
    }
}

/// Types that are taken in this order if none is named, as in llama.cpp.
const USUAL: [&str; 2] = ["Q4_K_M", "Q8_0"];
/// Parts of names of GGUF files that are no models by themselves, as in llama.cpp.
const BESIDE: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];
/// Small files of a checkpoint.
const SMALL: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
];

/// Chooses a model's files, by llama.cpp's rule: the named type, else Q4_K_M, else Q8_0, else the first GGUF file. A repository
/// without GGUF files is a checkpoint.
///
/// # Errors
///
/// [`HubError::NotThere`] with what there is.
pub fn choose(wanted: &Wanted, names: &[&str]) -> Result<Choice> {
    let missing = |what: String, found: &[&str]| HubError::NotThere {
        repo: wanted.repo.to_string(),
        wanted: what,
        found: found.iter().map(|&name| name.to_owned()).collect(),
    };
    let is_gguf = |name: &&str| name.to_ascii_lowercase().ends_with(".gguf");
    let models: Vec<&str> = names.iter().copied().filter(is_gguf).filter(|name| is_model(name)).collect();
    if let Some(file) = &wanted.file {
        let Some(found) =
            names.iter().find(|name| name.eq_ignore_ascii_case(file)).filter(|name| is_gguf(name))
        else {
            return Err(missing(format!("GGUF file {file}"), &models));
        };
        return parts(found, names)
            .map(Choice::Gguf)
            .ok_or_else(|| missing(format!("whole {file}"), &models));
    }
    let usual: Vec<&str> = wanted.quant.as_deref().map_or(USUAL.to_vec(), |quant| vec![quant]);
    let named =
        usual.iter().find_map(|quant| models.iter().find(|name| is_first(name) && has_type(name, quant)));
    let first = named.or_else(|| models.iter().find(|name| wanted.quant.is_none() && is_first(name)));
    if let Some(first) = first {
        return parts(first, names)
            .map(Choice::Gguf)
            .ok_or_else(|| missing(format!("whole {first}"), &models));
    }
    if let Some(quant) = &wanted.quant {
        return Err(missing(format!("GGUF file of type {quant}"), &models));
    }
    let is_weights = |name: &&str| {
        let is_own = !name.contains('/') && !name.starts_with("consolidated") && !name.starts_with("adapter");
        is_own && name.ends_with(".safetensors")
    };
    let mut files: Vec<&str> = names.iter().copied().filter(is_weights).collect();
    if files.is_empty() || !names.contains(&"config.json") {
        return Err(missing("model: neither a GGUF file nor config.json and *.safetensors".into(), names));
    }
    files.extend(names.iter().copied().filter(|name| SMALL.contains(name)));
    files.sort_unstable();
    Ok(Choice::Folder(files.into_iter().map(str::to_owned).collect()))
}

fn is_model(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    !BESIDE.iter().any(|part| file.contains(part))
}

/// True if the name contains the type, followed by `.`, `-` or `/`, in letters of any case.
fn has_type(name: &str, quant: &str) -> bool {
    let (name, quant) = (name.to_ascii_lowercase(), quant.to_ascii_lowercase());
    name.match_indices(&quant).any(|(at, _)| name[at + quant.len()..].starts_with(['.', '-', '/']))
}

/// The beginning, the number and the count of a name such as `model-00001-of-00003.gguf`.
fn split(name: &str) -> Option<(&str, usize, usize)> {
    let stem = &name[..name.len().checked_sub(".gguf".len())?];
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (start, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((start, digits(number)?, digits(count)?))
}

fn is_first(name: &str) -> bool {
    split(name).is_none_or(|(_, number, _)| number == 1)
}

/// All parts of the model that begins with `first`; `None` if some are missing.
fn parts(first: &str, names: &[&str]) -> Option<Vec<String>> {
    let Some((start, _, count)) = split(first) else { return Some(vec![first.to_owned()]) };
    let of_the_same = |name: &&str| {
        split(name).filter(|&(other, _, of)| other == start && of == count).map(|(_, number, _)| number)
    };
    let found: BTreeMap<usize, &str> =
        names.iter().filter_map(|name| of_the_same(name).map(|number| (number, *name))).collect();
    (1..=count).map(|number| found.get(&number).map(|&name| name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{Choice, choose};
    use crate::Wanted;

    fn chosen(wanted: &str, names: &[&str]) -> Vec<String> {
        choose(&Wanted::parse(wanted).unwrap(), names).unwrap().files().to_vec()
    }

    #[test]
    fn types_are_chosen_as_llama_cpp_does() {
        let names = [
            "README.md",
            "m-F16.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "mmproj-Q4_K_M.gguf",
        ];
        assert_eq!(chosen("a/b", &names), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen("a/b:q8_0", &names), ["m-Q8_0.gguf"]);
        assert_eq!(chosen("a/b:Q4_K_S", &names), ["m-Q4_K_S.gguf"]);
        assert_eq!(chosen("a/b", &names[..3]), ["m-Q8_0.gguf"]);
        assert_eq!(chosen("a/b", &names[..2]), ["m-F16.gguf"]);
        let error = choose(&Wanted::parse("a/b:Q4_K").unwrap(), &names).unwrap_err().to_string();
        assert_eq!(
            error,
            "a/b: no GGUF file of type Q4_K; there are\n  m-F16.gguf\n  m-Q8_0.gguf\n  m-Q4_K_M.gguf\n  m-Q4_K_S.gguf"
        );
    }

    #[test]
    fn split_files_are_whole_or_refused() {
        let names =
            ["Q4_K_M/m-00002-of-00002.gguf", "Q4_K_M/m-00001-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"];
        assert_eq!(
            chosen("a/b", &names),
            ["Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M/m-00002-of-00002.gguf"].map(String::from).to_vec()
        );
        assert!(choose(&Wanted::parse("a/b:Q8_0").unwrap(), &names).is_err());
        let huge = ["m-Q4_K_M-00001-of-99999.gguf"];
        assert!(choose(&Wanted::parse("a/b").unwrap(), &huge).is_err());
    }

    #[test]
    fn files_are_chosen_by_name() {
        let mut wanted = Wanted::parse("a/b").unwrap();
        wanted.file = Some("M-f16.gguf".into());
        assert_eq!(choose(&wanted, &["m-F16.gguf"]).unwrap(), Choice::Gguf(vec!["m-F16.gguf".into()]));
        wanted.file = Some("config.json".into());
        assert!(choose(&wanted, &["config.json"]).is_err());
    }

    #[test]
    fn checkpoints_are_folders() {
        let names = [
            ".gitattributes",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        let files = chosen("a/b", &names);
        assert_eq!(files, [names[2], names[4], names[5], names[6], names[9]]);
        assert!(choose(&Wanted::parse("a/b").unwrap(), &names[..2]).is_err());
    }
}
