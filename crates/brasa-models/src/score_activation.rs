//! Functions that turn a cross-encoder's logit into a score.

use serde_json::Value;

use crate::Result;
use crate::sentence::refuse;

/// The function that makes a score from a cross-encoder's logit, as sentence-transformers names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreActivation {
    /// 1 ÷ (1 + e^−x): a score from 0 to 1. The default of a head with one label.
    Sigmoid,
    /// The logit itself.
    Identity,
}

impl ScoreActivation {
    /// Reads the activation in `config.json`; `None` if it names none.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`](crate::ModelError::Config) for a function that Brasa does not compute, by its name.
    pub(crate) fn of(config: &Value) -> Result<Option<Self>> {
        let newer = config.get("sentence_transformers").and_then(|own| own.get("activation_fn"));
        let class = newer.or_else(|| config.get("sbert_ce_default_activation_function"));
        class.and_then(Value::as_str).map(Self::named).transpose()
    }

    /// The function for the name of a PyTorch class.
    pub(crate) fn named(class: &str) -> Result<Self> {
        match class.rsplit('.').next().unwrap_or_default() {
            "Sigmoid" => Ok(Self::Sigmoid),
            "Identity" => Ok(Self::Identity),
            other => Err(refuse(&format!(
                "the activation {other} of scores, which Brasa does not compute; Sigmoid and Identity are"
            ))),
        }
    }

    /// Applies the function to a logit.
    pub fn apply(self, logit: f32) -> f32 {
        match self {
            Self::Sigmoid => (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32,
            Self::Identity => logit,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_spellings_of_the_file_are_read() {
        let of = |config: Value| ScoreActivation::of(&config).unwrap();
        let identity = "torch.nn.modules.linear.Identity";
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({"sbert_ce_default_activation_function": null})), None);
        let older = json!({"sbert_ce_default_activation_function": identity});
        assert_eq!(of(older), Some(ScoreActivation::Identity));
        let both = json!({
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.0.1"},
            "sbert_ce_default_activation_function": identity,
        });
        assert_eq!(of(both), Some(ScoreActivation::Sigmoid));
        let other = json!({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}});
        assert!(ScoreActivation::of(&other).unwrap_err().to_string().contains("Tanh"));
    }
}
