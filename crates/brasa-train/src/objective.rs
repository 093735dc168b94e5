//! Objectives of training: the likelihood of learned tokens, a preference for one of two answers, or a loss that a program brings along.

use crate::{Result, TokenLoss, TrainError};

/// The objective of training, which determines the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Objective {
    /// Raises the likelihood of every learned token. The loss is the mean cross-entropy of these tokens.
    #[default]
    Likelihood,
    /// Raises the likelihood of every learned token. The loss of an update is the mean over its steps of each step's mean
    /// cross-entropy, as in MLX-LM's trainer. So steps count alike, regardless of their number of tokens.
    LikelihoodByStep,
    /// Raises the preference for the first document of each pair, compared with the model without the adapter.
    Preference(Preference),
    /// Lowers a custom loss. The loss is its mean over learned tokens.
    Own(TokenLoss),
}

/// Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290): the loss of a pair is −ln σ(β·((ln π − ln π₀) of the
/// chosen document − (ln π − ln π₀) of the rejected one)), with π the probability with the adapter and π₀ without; σ is the
/// logistic function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preference {
    /// β: how strongly the model is kept near its behaviour without the adapter.
    pub beta: f64,
}

impl Default for Preference {
    fn default() -> Self {
        Self { beta: 0.1 }
    }
}

/// The loss of one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    /// The loss of the pair, in nats.
    pub loss: f64,
    /// True if the adapter raises the log-probability of the chosen document more than that of the rejected one.
    pub is_right: bool,
    /// The derivative of the loss with respect to the summed cross-entropy of the chosen document. The derivative for the
    /// rejected document is its negative.
    pub slope: f64,
}

impl Preference {
    pub(crate) fn check(self) -> Result<()> {
        if self.beta.is_finite() && self.beta > 0.0 {
            return Ok(());
        }
        Err(TrainError::setting(format!("β of {}", self.beta), "β is more than 0, usually 0.1"))
    }

    /// Computes the loss of a pair from the cross-entropies of its chosen and its rejected document, each summed over learned
    /// tokens, with and without the adapter.
    pub(crate) fn judge(self, with: [f64; 2], without: [f64; 2]) -> Judged {
        let [chosen, rejected] = [without[0] - with[0], without[1] - with[1]];
        let margin = self.beta * (chosen - rejected);
        // Neither exponential overflows.
        let loss = (-margin).max(0.0) + (-margin.abs()).exp().ln_1p();
        Judged { loss, is_right: margin > 0.0, slope: self.beta / (1.0 + margin.exp()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_the_derivative_of_the_loss() {
        let preference = Preference { beta: 0.3 };
        for with in [[4.0, 5.0], [9.0, 2.0], [2000.0, -3000.0], [-3000.0, 2000.0]] {
            let loss = |chosen: f64, rejected: f64| preference.judge([chosen, rejected], [4.5, 4.0]).loss;
            let found = preference.judge(with, [4.5, 4.0]);
            let step = 1e-4;
            let chosen = (loss(with[0] + step, with[1]) - loss(with[0] - step, with[1])) / (2.0 * step);
            let rejected = (loss(with[0], with[1] + step) - loss(with[0], with[1] - step)) / (2.0 * step);
            assert!((found.slope - chosen).abs() < 1e-7 && (found.slope + rejected).abs() < 1e-7, "{with:?}");
            assert!(found.loss.is_finite() && found.loss >= 0.0);
        }
        let even = preference.judge([1.0, 2.0], [1.0, 2.0]);
        assert!((even.loss - std::f64::consts::LN_2).abs() < 1e-15 && !even.is_right);
    }
}
