//! Adafactor: approximates the mean squares of a matrix's gradients by means over rows and columns (Shazeer & Stern 2018,
//! arXiv:1804.04235), as `mlx.optimizers.Adafactor` defines it.

use serde_json::Value;

use super::Form;
use crate::{Result, TrainError};

/// Settings of Adafactor. The defaults are those of MLX.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// Two small numbers: the first is added to squares of gradients, the second is the least root mean square of the values by
    /// which a step is scaled.
    pub eps: [f64; 2],
    /// The largest root mean square of an update before its learning rate.
    pub clip_threshold: f64,
    /// Exponent of the decay: the mean of squares keeps a share of `1 − update^decay_rate`.
    pub decay_rate: f64,
    /// Decay of the mean of updates; `None` for no mean of updates.
    pub beta1: Option<f64>,
    /// Weight decay: the share by which values shrink, times the learning rate.
    pub weight_decay: f64,
    /// True to scale a step by the root mean square of the values.
    pub scale_parameter: bool,
    /// True to use the learning rate `min(0.01, 1/√update)` in place of the schedule's.
    pub relative_step: bool,
    /// True to begin a relative step at 1e-6 and raise it with every update.
    pub warmup_init: bool,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self {
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
            weight_decay: 0.0,
            scale_parameter: true,
            relative_step: true,
            warmup_init: false,
        }
    }
}

impl Adafactor {
    /// Reads the settings of `mlx.optimizers.Adafactor`, under MLX's names. Settings that are absent have their defaults.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`], naming an unknown setting or one with an invalid value.
    pub fn parse(settings: &Value) -> Result<Self> {
        let refuse = |what: String| {
            let hint = "there are eps, clip_threshold, decay_rate, beta_1, weight_decay, scale_parameter, relative_step and warmup_init";
            Err(TrainError::setting(what, hint))
        };
        let Some(settings) = settings.as_object() else {
            return refuse(format!("adafactor: {settings}"));
        };
        let mut own = Self::default();
        for (name, value) in settings {
            let number = value.as_f64().filter(|x| x.is_finite());
            let positive = number.filter(|x| *x > 0.0);
            let fits = match name.as_str() {
                "eps" => {
                    let pair = value.as_array().filter(|pair| pair.len() == 2);
                    let numbers: Option<Vec<f64>> =
                        pair.and_then(|pair| pair.iter().map(Value::as_f64).collect());
                    let numbers = numbers.filter(|pair| pair.iter().all(|x| x.is_finite() && *x > 0.0));
                    numbers.map(|pair| own.eps = [pair[0], pair[1]])
                }
                "clip_threshold" => positive.map(|x| own.clip_threshold = x),
                "decay_rate" => number.filter(|x| *x < 0.0).map(|x| own.decay_rate = x),
                "beta_1" if value.is_null() => {
                    own.beta1 = None;
                    Some(())
                }
                "beta_1" => number.filter(|x| (0.0..1.0).contains(x)).map(|x| own.beta1 = Some(x)),
                "weight_decay" => number.filter(|x| *x >= 0.0).map(|x| own.weight_decay = x),
                "scale_parameter" => value.as_bool().map(|x| own.scale_parameter = x),
                "relative_step" => value.as_bool().map(|x| own.relative_step = x),
                "warmup_init" => value.as_bool().map(|x| own.warmup_init = x),
                _ => None,
            };
            if fits.is_none() {
                return refuse(format!("adafactor.{name}: {value}"));
            }
        }
        Ok(own)
    }

    /// Lengths of the optimizer's arrays for an array of values: means over rows and over columns, or one mean for each element of
    /// an array without rows; and the mean of updates, if there is one.
    pub(super) fn states(&self, form: Form) -> Vec<usize> {
        let mut sizes = match form.matrices() {
            Some([count, rows, columns]) => vec![count * rows, count * columns],
            None => vec![form.count()],
        };
        sizes.extend(self.beta1.map(|_| form.count()));
        sizes
    }

    /// Updates an array of values by its gradient.
    pub(super) fn update(
        &self,
        form: Form,
        updates: u64,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let rate = (self.step(updates, learning_rate)
            * if self.scale_parameter { root_mean_square(values).max(self.eps[1]) } else { 1.0 })
            as f32;
        let beta2 = 1.0 - (updates as f64).powf(self.decay_rate);
        let (kept, new, eps) = (beta2 as f32, (1.0 - beta2) as f32, self.eps[0] as f32);
        let mut along = match (form.matrices(), &mut *states) {
            (Some([_, rows, columns]), [of_rows, of_columns, ..]) => {
                let mut along = Vec::with_capacity(values.len());
                let each = gradients.chunks_exact(rows * columns);
                let means = of_rows.chunks_exact_mut(rows).zip(of_columns.chunks_exact_mut(columns));
                for (gradients, (of_rows, of_columns)) in each.zip(means) {
                    means_of_squares(gradients, eps, [kept, new], of_rows, of_columns);
                    let mean = of_rows.iter().map(|&x| f64::from(x)).sum::<f64>() / rows as f64;
                    for (gradients, &of_row) in gradients.chunks_exact(columns).zip(&*of_rows) {
                        let row = 1.0 / (of_row / mean as f32).sqrt();
                        let each = gradients.iter().zip(&*of_columns);
                        along.extend(each.map(|(&gradient, column)| row / column.sqrt() * gradient));
                    }
                }
                along
            }
            (_, [squares, ..]) => {
                let each = gradients.iter().zip(squares.iter_mut());
                each.map(|(&gradient, square)| {
                    *square = kept * *square + new * (gradient * gradient + eps);
                    gradient / square.sqrt()
                })
                .collect()
            }
            (_, []) => unreachable!("means of squares"),
        };
        let shrunk = rate / (root_mean_square(&along) / self.clip_threshold).max(1.0) as f32;
        for along in &mut along {
            *along *= shrunk;
        }
        if let (Some(beta1), Some(means)) = (self.beta1, states.last_mut()) {
            let (kept, new) = (beta1 as f32, (1.0 - beta1) as f32);
            for (along, mean) in along.iter_mut().zip(means.iter_mut()) {
                *mean = kept * *mean + new * *along;
                *along = *mean;
            }
        }
        let decay = self.weight_decay as f32 * rate;
        for (value, along) in values.iter_mut().zip(along) {
            *value = *value - *value * decay - along;
        }
    }

    fn step(&self, updates: u64, learning_rate: f64) -> f64 {
        let number = updates as f64;
        match (self.relative_step, self.warmup_init) {
            (false, _) => learning_rate,
            (true, true) => (1e-6 * number).min(number.powf(-0.5)),
            (true, false) => 1e-2_f64.min(number.powf(-0.5)),
        }
    }
}

/// Updates the means of squares over rows and over columns by new gradients.
fn means_of_squares(
    gradients: &[f32],
    eps: f32,
    [kept, new]: [f32; 2],
    of_rows: &mut [f32],
    of_columns: &mut [f32],
) {
    let (rows, columns) = (of_rows.len(), of_columns.len());
    let mut sums = vec![0.0_f64; columns];
    for (gradients, of_row) in gradients.chunks_exact(columns).zip(of_rows) {
        let mut sum = 0.0_f64;
        for (total, &gradient) in sums.iter_mut().zip(gradients) {
            let square = f64::from(gradient * gradient + eps);
            sum += square;
            *total += square;
        }
        *of_row = kept * *of_row + new * (sum / columns as f64) as f32;
    }
    for (of_column, sum) in of_columns.iter_mut().zip(sums) {
        *of_column = kept * *of_column + new * (sum / rows as f64) as f32;
    }
}

fn root_mean_square(values: &[f32]) -> f64 {
    (values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / values.len().max(1) as f64).sqrt()
}
