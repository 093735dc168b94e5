//! Errors of training, with the flags that remedy them.

use brasa::train::TrainError;

use crate::failure::Failure;

/// The failure for an error of training, with the flags for its remedy.
#[expect(clippy::needless_pass_by_value, reason = "an error is turned into another")]
pub fn failure(error: TrainError) -> Failure {
    let text = error.to_string();
    let flags = match &error {
        TrainError::Data { what, .. } if what.contains("a step has at most") => {
            Some("--batch-tokens, --long")
        }
        TrainError::Data { what, .. }
            if what.contains("template shows") || what.contains("template does not") =>
        {
            Some("--turns apart, --chat-template-file")
        }
        TrainError::Data { what, .. } if what.starts_with("no assistant turn") => Some("--learn all"),
        TrainError::Data { what, .. } if what == "`chosen` and `rejected`" => Some("--loss dpo"),
        TrainError::NotFinite { .. } => Some("--lr, --warm-up, --resume"),
        TrainError::Checkpoint { .. } => Some("--resume, --out"),
        _ => None,
    };
    Failure::Failed(flags.map_or(text.clone(), |flags| format!("{text} ({flags})")))
}
