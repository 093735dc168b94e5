//! `brasa perplexity`: how well a model predicts a text, by llama-perplexity's method.

use std::ops::ControlFlow;

use brasa::RequestOptions;
use serde_json::json;

use super::generate::encode;
use crate::args::PerplexityArguments;
use crate::failure::Failure;
use crate::output::plural;
use crate::{input, interrupt, load, output};

/// Tokens of a window if no context length is given, llama-perplexity's default.
const DEFAULT_WINDOW: usize = 512;

/// Prints the perplexity of a text.
pub fn perplexity(arguments: &PerplexityArguments) -> Result<(), Failure> {
    let text = input::text(&arguments.file)?;
    let mut load = arguments.load.clone();
    let window = *load.setup.context.get_or_insert(DEFAULT_WINDOW);
    let model = load::model(&load)?;
    let ids = encode(&model, &text, false)?;
    let bar = load::count_bar("perplexity");
    bar.set_length((ids.len() / window) as u64);
    let result = model.perplexity(&ids, window, &RequestOptions::DEFAULT, |sum, _| {
        bar.set_position(sum.windows as u64);
        bar.set_message(format!("perplexity {:.4}", sum.value()));
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    bar.finish_and_clear();
    interrupt::check()?;
    if arguments.json {
        return output::line(
            &json!({
                "perplexity": result.value(),
                "standard_error": result.standard_error(),
                "mean_nll": result.nll / result.tokens as f64,
                "windows": result.windows,
                "window_tokens": window,
                "scored_tokens": result.tokens,
                "text_tokens": ids.len(),
            })
            .to_string(),
        );
    }
    output::line(&format!(
        "perplexity {:.4} ± {:.4} ({} in {} of {window})",
        result.value(),
        result.standard_error(),
        plural(result.tokens, "token"),
        plural(result.windows, "window")
    ))
}
