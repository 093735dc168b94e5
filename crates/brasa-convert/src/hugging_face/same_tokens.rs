//! Whether the tokenizer of the output cuts texts as that of the folder does.

use brasa_formats::Checkpoint;
use brasa_formats::gguf::Metadata;
use brasa_models::ModelError;
use brasa_tokenizer::{AddSpecial, GgufVocabulary, ParseSpecial, Tokenizer, TokenizerError};

use super::tokenizer::PREFIX_SCHEME;
use crate::progress::tell;
use crate::{ConvertError, Event, Observer, Options, Result};

/// Texts whose tokens are compared: words, white space, accents, ligatures, other scripts, digits, signs.
const PROBES: [&str; 9] = [
    "Brasa runs language models on the machine you have.",
    "  Two  spaces,\ttabs\nand lines  ",
    " one space in front",
    "Naïve cafés, ÀÉÎ and e\u{301}",
    "ﬁnal ＡＢ① …",
    "漢字かな 한국어 русский",
    "1234567 3.14 don't (x) [y] a_b",
    "🙂 ok",
    "",
];
/// Most special tokens that texts are compared after.
const MOST_SPECIAL: usize = 2;

/// The tokenizers of the folder and of the output.
struct Both {
    folder: Tokenizer,
    output: Tokenizer,
}

/// A text that has other tokens in the output.
struct Difference {
    text: String,
    folder: Vec<u32>,
    output: Vec<u32>,
}

impl Both {
    fn read(
        checkpoint: &Checkpoint,
        metadata: &Metadata,
        options: &Options,
    ) -> std::result::Result<Self, TokenizerError> {
        let vocabulary = GgufVocabulary::from_metadata(metadata)?;
        Ok(Self {
            folder: Tokenizer::from_checkpoint(checkpoint, None)?,
            output: Tokenizer::from_gguf(&vocabulary, options.pre_tokenizer.as_deref())?,
        })
    }

    /// Compares the tokens of `text`, which the folder gets as `given`.
    fn compare(
        &self,
        text: &str,
        given: &str,
        add: AddSpecial,
        parse: ParseSpecial,
    ) -> std::result::Result<Option<Difference>, TokenizerError> {
        let (folder, output) =
            (self.folder.encode(given, add, parse)?, self.output.encode(text, add, parse)?);
        Ok((folder != output).then(|| Difference { text: text.to_owned(), folder, output }))
    }

    /// Texts of a few special tokens: the end of a text, and others that both have.
    fn special(&self) -> Vec<&str> {
        let special = self.folder.special_tokens();
        let vocabulary = self.folder.vocabulary();
        let known =
            special.eos.into_iter().chain(special.end_of_generation.iter().copied()).chain(special.bos);
        let mut texts = Vec::new();
        for text in known.filter_map(|id| vocabulary.text(id)) {
            if !texts.contains(&text) && self.output.token_to_id(text).is_some() {
                texts.push(text);
            }
        }
        texts.truncate(MOST_SPECIAL);
        texts
    }
}

/// Checks that an encoder's tokens are the same in both forms; `lowercase` says that the folder lowercases texts first. A
/// difference is an error, since an encoder needs its exact tokens.
pub fn of_encoder(
    checkpoint: &Checkpoint,
    metadata: &Metadata,
    options: &Options,
    lowercase: bool,
    observer: &mut Observer<'_>,
) -> Result<()> {
    if metadata.get::<&str>("tokenizer.ggml.model")? == Some("none") {
        return Ok(());
    }
    let refuse = |error: TokenizerError| {
        let hint = "the tokenizer cannot be read; download it again";
        ConvertError::tokenizer("tokenizer.json", error.to_string(), hint)
    };
    let both = Both::read(checkpoint, metadata, options).map_err(refuse)?;
    for text in PROBES {
        let given = if lowercase { text.to_lowercase() } else { text.to_owned() };
        let found = both.compare(text, &given, AddSpecial::AsModel, ParseSpecial::No).map_err(refuse)?;
        if let Some(Difference { text, folder, output }) = found {
            let difference = format!("tokens of {text:?}: {folder:?}, {output:?}");
            // GGUF has no composing in front of the cuts of these vocabularies, and texts are composed nearly always.
            if text.contains('\u{301}') && metadata.get::<&str>("tokenizer.ggml.model")? == Some("gpt2") {
                let warning = format!(
                    "accents that are characters of their own become other tokens in GGUF: {difference}"
                );
                tell(observer, Event::Warning(warning))?;
                continue;
            }
            return Err(ModelError::OtherInGguf { difference }.into());
        }
    }
    Ok(())
}

/// Compares the tokens of a language model, for plain texts and for texts after special tokens. A difference is a warning.
pub fn of_language_model(
    checkpoint: &Checkpoint,
    metadata: &Metadata,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<()> {
    if metadata.contains(PREFIX_SCHEME) {
        let scheme: &str = metadata.require(PREFIX_SCHEME)?;
        let warning = format!(
            "tokenizer.json puts a space in front of texts by the rule `prepend_scheme: {scheme}` of Metaspace, which only Brasa reads from the output ({PREFIX_SCHEME}); other programs put a space behind every special token, even before a space"
        );
        tell(observer, Event::Warning(warning))?;
    }
    // A folder with a tokenizer.model alone has nothing that could be compared.
    if metadata.get::<&str>("tokenizer.ggml.model")? == Some("none")
        || checkpoint.sidecar("tokenizer.json")?.is_none()
    {
        return Ok(());
    }
    let both = match Both::read(checkpoint, metadata, options) {
        Ok(both) => both,
        Err(error) => {
            let warning = format!("tokens of the output are not compared with those of the folder: {error}");
            return tell(observer, Event::Warning(warning));
        }
    };
    let mut compared = 0;
    let mut differences = Vec::new();
    let mut compare = |text: &str, add, parse| {
        compared += 1;
        both.compare(text, text, add, parse).map(|found| differences.extend(found))
    };
    let special = both.special();
    let all = PROBES.iter().try_for_each(|text| {
        compare(text, AddSpecial::AsModel, ParseSpecial::No)?;
        special
            .iter()
            .try_for_each(|token| compare(&format!("{token}{text}"), AddSpecial::No, ParseSpecial::Yes))
    });
    let warning = match (all, &differences[..]) {
        (Err(error), _) => format!("tokens of the output are not compared with those of the folder: {error}"),
        (Ok(()), []) => return Ok(()),
        (Ok(()), [Difference { text, folder, output }, ..]) => format!(
            "{} of {compared} texts have other tokens in GGUF, such as {text:?}: {folder:?} by the folder, {output:?} by the output",
            differences.len()
        ),
    };
    tell(observer, Event::Warning(warning))
}
