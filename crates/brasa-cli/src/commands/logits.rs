//! `brasa logits`: the most probable tokens after given token ids.

use brasa::RequestOptions;
use serde_json::json;

use super::generate::encode;
use super::npy::npy_header;
use super::prompt::prompt_text;
use crate::args::LogitsArguments;
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// Prints the most probable next tokens, and saves all logits on request.
pub fn logits(arguments: &LogitsArguments) -> Result<(), Failure> {
    let force = output::Force { given: arguments.force, how: "--force" };
    if let Some(path) = &arguments.out {
        output::refuse_existing(path, force)?;
    }
    let text = if arguments.ids.is_some() { None } else { prompt_text(&arguments.prompt)? };
    let model = load::model(&arguments.load)?;
    let ids = match (&arguments.ids, text) {
        (Some(ids), _) => ids.clone(),
        (None, Some(text)) => encode(&model, &text, false)?,
        (None, None) => {
            return Err(Failure::Usage("no tokens\nhint: give them (--ids) or a text (-p, -f)".into()));
        }
    };
    let ends = interrupt::ends_at_once();
    let score = match &arguments.out {
        None => model.score(&ids, &RequestOptions::DEFAULT, |_| {})?,
        Some(path) => {
            let mut score = None;
            let width = model.vocab_size();
            let written = output::file(path, force, |out| {
                npy_header(out, ids.len(), width)?;
                let mut failure = Ok(());
                let computed = model.score(&ids, &RequestOptions::DEFAULT, |row| {
                    if failure.is_ok() {
                        failure = row.iter().try_for_each(|logit| out.write_all(&logit.to_le_bytes()));
                    }
                });
                // Without all rows there is no file.
                let missing = computed.is_err().then(|| std::io::Error::other("no logits were computed"));
                score = Some(computed);
                failure.and(missing.map_or(Ok(()), Err))
            });
            match (score, written) {
                (Some(computed), Ok(())) => computed?,
                (Some(Err(error)), _) => return Err(error.into()),
                (_, Err(failure)) => return Err(failure),
                (None, Ok(())) => return Err(Failure::Failed("no logits were computed".into())),
            }
        }
    };
    drop(ends);
    let top = largest(&score.last_logits, arguments.top);
    if arguments.json {
        let top: Vec<_> = top.iter().map(|&(id, logit)| json!({"id": id, "logit": logit})).collect();
        return output::line(&json!({"nll": score.mean_nll, "top": top}).to_string());
    }
    if let Some(nll) = score.mean_nll {
        output::line(&format!("mean −ln p {nll:.6} over {}", output::plural(ids.len() - 1, "token")))?;
    }
    for (id, logit) in top {
        output::line(&format!(
            "{id:>8}  {logit:>12.6}  {:?}",
            model.tokenizer().piece(id).unwrap_or_default()
        ))?;
    }
    Ok(())
}

/// The `count` largest logits, largest first, ties to the lowest id.
fn largest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    order.into_iter().take(count).map(|id| (id, logits[id as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0], 3), [(1, 3.0), (2, 3.0), (3, 2.0)]);
    }
}
