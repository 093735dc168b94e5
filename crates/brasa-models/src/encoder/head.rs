//! A head that reads the mean of a text's hidden states. It is computed outside the graph.

use super::spec::{EncoderSpec, HeadForm, HeadPooling};
use crate::sentence::{DenseActivation, DenseLayer};
use crate::weights::{Place, Weights};
use crate::{ModelError, Result};

/// A head `out(norm(act(dense(h))))` over the mean `h` of all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanHead {
    /// The first layer, with its activation.
    pub dense: DenseLayer,
    /// Weights of the layer norm, `[hidden_size]`.
    pub norm_weight: Vec<f32>,
    /// Biases of the layer norm, `[hidden_size]`; `None` for a norm without biases.
    pub norm_bias: Option<Vec<f32>>,
    /// Added to the variance in the layer norm.
    pub norm_eps: f32,
    /// The last layer, `[labels, hidden_size]`.
    pub output: DenseLayer,
}

impl MeanHead {
    /// Reads the head of `spec`; `None` if the checkpoint has no head over means.
    pub(super) fn of(spec: &EncoderSpec, weights: &Weights<'_>) -> Result<Option<Self>> {
        let Some(head) = spec.classifier.filter(|head| head.pooling == HeadPooling::Mean) else {
            return Ok(None);
        };
        let d = spec.hidden_size;
        let values = |name: &str, shape: &[usize]| {
            weights.values(Place::MODEL, name, shape, "the head of the encoder")
        };
        let required = |name: &str, shape: &[usize]| {
            values(name, shape)?.ok_or_else(|| ModelError::MissingTensor { tensor: name.into() })
        };
        let layer = |stem: &str, outputs: usize, activation: DenseActivation| {
            Ok::<_, ModelError>(DenseLayer {
                inputs: d,
                outputs,
                weight: required(&format!("{stem}.weight"), &[outputs, d])?,
                bias: values(&format!("{stem}.bias"), &[outputs])?,
                activation,
            })
        };
        let activation = match head.form {
            HeadForm::Tanh => DenseActivation::Tanh,
            HeadForm::Normed(activation) => DenseActivation::Other(activation),
        };
        Ok(Some(Self {
            dense: layer("cls", d, activation)?,
            norm_weight: required("cls.norm.weight", &[d])?,
            norm_bias: values("cls.norm.bias", &[d])?,
            norm_eps: spec.norm_eps,
            output: layer("cls.output", head.labels, DenseActivation::Identity)?,
        }))
    }
}
