//! The learning rate of each update.

/// Course of the learning rate behind the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// The rate stays the same.
    #[default]
    Constant,
    /// The rate falls linearly.
    Linear,
    /// The rate falls along half a cosine (Loshchilov & Hutter 2016, arXiv:1608.03983).
    Cosine,
}

/// Learning rates of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The form behind the warm-up.
    pub shape: Shape,
    /// The highest rate.
    pub peak: f64,
    /// Updates of the warm-up, in which the rate rises in a line; its last update has the highest rate.
    pub warm_up: u64,
    /// All updates.
    pub updates: u64,
    /// The share of the highest rate to which a falling one falls.
    pub floor: f64,
}

impl Schedule {
    /// The rate of update `update`, from 0.
    ///
    /// Behind the warm-up it is that of transformers' schedules. In the warm-up it is theirs of the next update: their first
    /// update has rate 0 and changes nothing.
    pub fn rate(&self, update: u64) -> f64 {
        if update < self.warm_up {
            return self.peak * (update + 1) as f64 / self.warm_up as f64;
        }
        let all = self.updates.saturating_sub(self.warm_up).max(1);
        let share = ((update - self.warm_up) as f64 / all as f64).min(1.0);
        let left = match self.shape {
            Shape::Constant => 1.0,
            Shape::Linear => 1.0 - share,
            Shape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }
}
