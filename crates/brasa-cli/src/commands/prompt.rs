//! The prompt of a command: from its flag, a file or standard input.

use std::io::IsTerminal;

use crate::args::PromptArguments;
use crate::failure::Failure;
use crate::input;

/// The prompt's bytes: from the flag, the file, or standard input; `None` if none of them gives one.
pub fn prompt_bytes(arguments: &PromptArguments) -> Result<Option<Vec<u8>>, Failure> {
    let bytes = raw_prompt_bytes(arguments)?;
    Ok(bytes.map(|bytes| if arguments.escape { input::unescape(&bytes) } else { bytes }))
}

/// The prompt's bytes without reading escapes.
fn raw_prompt_bytes(arguments: &PromptArguments) -> Result<Option<Vec<u8>>, Failure> {
    match (&arguments.prompt, &arguments.file) {
        (Some(text), _) => Ok(Some(text.clone().into_bytes())),
        (None, Some(path)) => input::read(path).map(Some),
        (None, None) => {
            let bytes = if std::io::stdin().is_terminal() { Vec::new() } else { input::standard()? };
            Ok((!bytes.is_empty()).then_some(bytes))
        }
    }
}

/// The prompt as text.
pub fn prompt_text(arguments: &PromptArguments) -> Result<Option<String>, Failure> {
    let text = prompt_bytes(arguments)?.map(String::from_utf8).transpose();
    text.map_err(|error| Failure::Failed(format!("the prompt is not UTF-8: {error}")))
}
