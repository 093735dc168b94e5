//! Rules that turn gradients into new values, in f32, and learning rates.

use brasa_graph::learn::AdamStep;

mod adafactor;
mod clip;
mod eight_bits;
mod moment;
mod muon;
mod rates;
mod schedule;

pub use adafactor::Adafactor;
pub use clip::{clip, norm, shortening};
pub use eight_bits::{BLOCK, Codes, SHORTEST, map};
pub use moment::Moment;
pub use muon::{Muon, MuonKind};
pub use rates::{MlxCourse, MlxSchedule, Rates};
pub use schedule::{Schedule, Shape};

/// A rule and its settings. Defaults are those of torch, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Adam with weight decay that is decoupled from the gradient (Loshchilov & Hutter 2017, arXiv:1711.05101).
    AdamW(Adam),
    /// AdamW with moments of eight bits a number (Dettmers et al. 2022, arXiv:2110.02861). Moments of short arrays are f32.
    AdamW8(Adam),
    /// Adam (Kingma & Ba 2014, arXiv:1412.6980). Weight decay is added to the gradient.
    Adam(Adam),
    /// Stochastic gradient descent, with momentum (Sutskever et al. 2013) if there is any.
    Sgd(Sgd),
    /// Momentum with orthogonalised matrices (Jordan et al. 2024).
    Muon(Muon),
    /// Adafactor: approximates the mean squares of a matrix's gradients by means over rows and columns (Shazeer & Stern 2018).
    Adafactor(Adafactor),
}

/// The shape and use of an array of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A matrix that multiplies activations: number of rows, and elements of a row.
    Matrix(usize, usize),
    /// `A` or `B` of an adapter: number of rows, and elements of a row.
    LowRank(usize, usize),
    /// Embeddings: number of rows, which are looked up, and elements of a row.
    Table(usize, usize),
    /// A stack of matrices: their number, the rows of each, and the elements of a row.
    Stack(usize, usize, usize),
    /// Any other array, with its length: magnitudes, norms, biases.
    Other(usize),
}

impl Form {
    /// Number of values of the array.
    pub fn count(self) -> usize {
        match self {
            Self::Matrix(rows, columns) | Self::LowRank(rows, columns) | Self::Table(rows, columns) => {
                rows * columns
            }
            Self::Stack(count, rows, columns) => count * rows * columns,
            Self::Other(count) => count,
        }
    }

    /// True for arrays that Muon orthogonalises.
    fn is_orthogonal(self) -> bool {
        matches!(self, Self::Matrix(..) | Self::LowRank(..))
    }

    /// Number of matrices, rows of a matrix, and elements of a row; `None` for an array without rows.
    pub(crate) fn matrices(self) -> Option<[usize; 3]> {
        match self {
            Self::Matrix(rows, columns) | Self::LowRank(rows, columns) | Self::Table(rows, columns) => {
                Some([1, rows, columns])
            }
            Self::Stack(count, rows, columns) => Some([count, rows, columns]),
            Self::Other(_) => None,
        }
    }
}

impl From<usize> for Form {
    fn from(count: usize) -> Self {
        Self::Other(count)
    }
}

/// Settings of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Number that is added to the root of the mean square.
    pub eps: f64,
    /// Weight decay: the share by which values shrink, times the learning rate. The default is 0 (torch's AdamW has 0.01),
    /// because the values of an adapter are differences already.
    pub weight_decay: f64,
    /// True to correct the bias of the means in the first updates, since they begin at 0. MLX's Adam does not correct it by
    /// default.
    pub bias_correction: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, bias_correction: true }
    }
}

/// Settings of stochastic gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// Decay of the sum of gradients; 0 for none.
    pub momentum: f64,
    /// True for Nesterov's momentum, which looks ahead along the momentum.
    pub nesterov: bool,
    /// Weight decay: the share of the values that is added to the gradient.
    pub weight_decay: f64,
}

impl Rule {
    /// Name that selects the rule.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AdamW(_) => "adamw",
            Self::AdamW8(_) => "adamw-8bit",
            Self::Adam(_) => "adam",
            Self::Sgd(_) => "sgd",
            Self::Muon(_) => "muon",
            Self::Adafactor(_) => "adafactor",
        }
    }

    /// Bytes of the moments for an array of values.
    pub(crate) fn moment_bytes(&self, form: Form) -> u64 {
        // Zeros take no memory until they are written to.
        self.moments(form).iter().map(Moment::size_bytes).sum()
    }

    /// The moments for an array of values before the first update.
    pub fn moments(&self, form: Form) -> Vec<Moment> {
        let count = form.count();
        let floats = |arrays: usize| vec![Moment::zeros(count); arrays];
        match self {
            Self::AdamW8(_) if count >= SHORTEST => {
                [true, false].map(|is_signed| Moment::Codes(Codes::zeros(count, is_signed))).to_vec()
            }
            Self::AdamW(_) | Self::AdamW8(_) | Self::Adam(_) => floats(2),
            Self::Sgd(sgd) => floats(usize::from(sgd.momentum != 0.0)),
            Self::Muon(muon) if muon.kind == MuonKind::Torch && !form.is_orthogonal() => floats(2),
            Self::Muon(_) => floats(1),
            Self::Adafactor(adafactor) => adafactor.states(form).into_iter().map(Moment::zeros).collect(),
        }
    }
}

/// A rule with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    rule: Rule,
    /// Updates so far.
    updates: u64,
    /// The form of each array of values.
    forms: Vec<Form>,
    /// For each array of values, the rule's moments: means of gradients and of their squares, or the momentum.
    states: Vec<Vec<Moment>>,
}

impl Optimizer {
    /// Makes an optimizer before its first update. `forms` are the forms of the arrays of values: matrices, or a plain number of
    /// elements.
    pub fn new(rule: Rule, forms: impl IntoIterator<Item = impl Into<Form>>) -> Self {
        let forms: Vec<Form> = forms.into_iter().map(Into::into).collect();
        let states = forms.iter().map(|&form| rule.moments(form)).collect();
        Self { rule, updates: 0, forms, states }
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// For each array of values, the rule's moments.
    pub fn states(&self) -> &[Vec<Moment>] {
        &self.states
    }

    /// Restores a state: the number of `updates` so far, and the moments.
    ///
    /// # Panics
    ///
    /// If the number, the lengths or the kinds of the arrays differ from the rule's.
    pub fn restore(&mut self, updates: u64, states: Vec<Vec<Moment>>) {
        let sizes = |states: &[Vec<Moment>]| -> Vec<Vec<(usize, bool)>> {
            states.iter().map(|arrays| arrays.iter().map(Moment::kind).collect()).collect()
        };
        assert_eq!(sizes(&states), sizes(&self.states), "sizes of an optimizer's state");
        (self.updates, self.states) = (updates, states);
    }

    /// The next update for a device to make, with gradients multiplied by `factor`; `None` for rules that devices do not support.
    pub fn step_of_device(&self, learning_rate: f64, factor: f32) -> Option<AdamStep> {
        let Rule::AdamW(adam) = &self.rule else { return None };
        Some(adam.step(self.updates + 1, learning_rate, factor))
    }

    /// Counts an update that a device has made.
    pub fn count(&mut self) {
        self.updates += 1;
    }

    /// Updates the values by their gradients.
    ///
    /// # Panics
    ///
    /// If the number or the lengths of the arrays differ from those that the optimizer was made for.
    pub fn update(&mut self, learning_rate: f64, values: &mut [Vec<f32>], gradients: &[Vec<f32>]) {
        assert_eq!((values.len(), gradients.len()), (self.states.len(), self.states.len()), "arrays");
        self.updates += 1;
        let each = values.iter_mut().zip(gradients).zip(self.forms.iter().zip(&mut self.states));
        for ((values, gradients), (&form, states)) in each {
            assert_eq!(values.len(), gradients.len(), "values and their gradients");
            if let (Rule::AdamW8(adam), [Moment::Codes(means), Moment::Codes(squares)]) =
                (&self.rule, &mut states[..])
            {
                adam.update_codes(self.updates, learning_rate, values, gradients, [means, squares]);
                continue;
            }
            let mut states: Vec<&mut [f32]> = states.iter_mut().map(Moment::floats).collect();
            match &self.rule {
                Rule::AdamW(adam) | Rule::AdamW8(adam) => {
                    adam.update_apart(self.updates, learning_rate, values, gradients, &mut states);
                }
                Rule::Muon(muon) => {
                    if let [momentum] = &mut states[..] {
                        muon.update(form, learning_rate, values, gradients, momentum);
                    } else {
                        let adam = Adam { weight_decay: muon.weight_decay, ..Adam::default() };
                        adam.update_apart(self.updates, learning_rate, values, gradients, &mut states);
                    }
                }
                Rule::Adam(adam) => {
                    let decay = adam.weight_decay as f32;
                    adam.update(self.updates, learning_rate, decay, values, gradients, &mut states);
                }
                Rule::Sgd(sgd) => sgd.update(self.updates, learning_rate, values, gradients, &mut states),
                Rule::Adafactor(adafactor) => {
                    adafactor.update(form, self.updates, learning_rate, values, gradients, &mut states);
                }
            }
        }
    }
}

impl Adam {
    /// The numbers of update `updates`, counted from 1, that are the same for all elements.
    fn step(&self, updates: u64, learning_rate: f64, factor: f32) -> AdamStep {
        let power = |beta: f64| if self.bias_correction { 1.0 - beta.powf(updates as f64) } else { 1.0 };
        AdamStep {
            factor,
            kept: (1.0 - learning_rate * self.weight_decay) as f32,
            new1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            new2: (1.0 - self.beta2) as f32,
            rate: (learning_rate / power(self.beta1)) as f32,
            root: power(self.beta2).sqrt() as f32,
            eps: self.eps as f32,
        }
    }

    /// Updates an array with weight decay that is decoupled from the gradient.
    fn update_apart(
        &self,
        updates: u64,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let kept = self.step(updates, learning_rate, 1.0).kept;
        for value in values.iter_mut() {
            *value *= kept;
        }
        self.update(updates, learning_rate, 0.0, values, gradients, states);
    }

    /// Like [`update_apart`](Self::update_apart), block by block with moments of eight bits: they are decoded, updated, used, and
    /// encoded again.
    fn update_codes(
        &self,
        updates: u64,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        [means, squares]: [&mut Codes; 2],
    ) {
        let mut buffers = [[0.0; BLOCK]; 2];
        let blocks = values.chunks_mut(BLOCK).zip(gradients.chunks(BLOCK));
        for (block, (values, gradients)) in blocks.enumerate() {
            let [mean, square] = &mut buffers;
            let (mean, square) = (&mut mean[..values.len()], &mut square[..values.len()]);
            means.decode(block, mean);
            squares.decode(block, square);
            self.update_apart(updates, learning_rate, values, gradients, &mut [&mut *mean, &mut *square]);
            means.encode(block, mean);
            squares.encode(block, square);
        }
    }

    fn update(
        &self,
        updates: u64,
        learning_rate: f64,
        decay: f32,
        values: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let [means, squares] = states else { unreachable!("two arrays") };
        let AdamStep { new1, beta2, new2, rate, root, eps, .. } = self.step(updates, learning_rate, 1.0);
        let each = values.iter_mut().zip(gradients).zip(means.iter_mut().zip(squares.iter_mut()));
        for ((value, &gradient), (mean, square)) in each {
            let gradient = gradient + decay * *value;
            *mean += new1 * (gradient - *mean);
            *square = beta2 * *square + new2 * gradient * gradient;
            *value -= rate * *mean / (square.sqrt() / root + eps);
        }
    }
}

impl Sgd {
    fn update(
        &self,
        updates: u64,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let (rate, decay, kept) = (learning_rate as f32, self.weight_decay as f32, self.momentum as f32);
        let [momentum] = states else {
            for (value, &gradient) in values.iter_mut().zip(gradients) {
                *value -= rate * (gradient + decay * *value);
            }
            return;
        };
        for ((value, &gradient), sum) in values.iter_mut().zip(gradients).zip(momentum.iter_mut()) {
            let gradient = gradient + decay * *value;
            *sum = if updates == 1 { gradient } else { kept * *sum + gradient };
            let along = if self.nesterov { gradient + kept * *sum } else { *sum };
            *value -= rate * along;
        }
    }
}
