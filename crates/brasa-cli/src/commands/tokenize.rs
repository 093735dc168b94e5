//! `brasa tokenize`: converts text to token ids and back. Needs neither tensors nor a supported architecture.

use brasa::tokenizer::{AddSpecial, ParseSpecial, Tokenizer};
use serde_json::json;

use super::prompt::prompt_bytes;
use crate::args::TokenizeArguments;
use crate::failure::Failure;
use crate::{bundled, output, values};

/// Prints the token ids of a text, or the text of token ids.
pub fn tokenize(arguments: &TokenizeArguments) -> Result<(), Failure> {
    let pre = values::given(arguments.pre.as_ref());
    let pre = pre.as_deref();
    let tokenizer = match &arguments.source.model {
        Some(path) => brasa::open_tokenizer(path, pre)?,
        None => brasa::open_tokenizer_bytes(bundled::MODEL, pre)?,
    };
    for warning in tokenizer.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    if let Some(ids) = &arguments.decode {
        return decode(&tokenizer, ids, arguments.json);
    }
    let text = prompt_bytes(&arguments.prompt)?.ok_or_else(|| {
        Failure::Usage("nothing to tokenize\nhint: give a text (-p, -f, or standard input)".into())
    })?;
    let text = String::from_utf8(text).map_err(|error| {
        Failure::Failed(format!("the text is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })?;
    let add = if arguments.no_bos { AddSpecial::No } else { AddSpecial::AsModel };
    let parse = if arguments.parse_special { ParseSpecial::Yes } else { ParseSpecial::No };
    let ids = tokenizer.encode(&text, add, parse).map_err(brasa::Error::from)?;
    let pieces = pieces(&tokenizer, &ids)?;
    if arguments.json {
        return output::line(&json!({"ids": ids, "pieces": pieces}).to_string());
    }
    for (id, piece) in ids.iter().zip(&pieces) {
        output::line(&format!("{id:>8}  {piece:?}"))?;
    }
    Ok(())
}

fn decode(tokenizer: &Tokenizer, ids: &[u32], as_json: bool) -> Result<(), Failure> {
    let text = tokenizer.decode(ids, false).map_err(brasa::Error::from)?;
    if as_json {
        let pieces = pieces(tokenizer, ids)?;
        output::line(&json!({"ids": ids, "pieces": pieces, "text": text}).to_string())
    } else {
        output::line(&text)
    }
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Result<Vec<String>, Failure> {
    let pieces: Result<_, _> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
    Ok(pieces.map_err(brasa::Error::from)?)
}
