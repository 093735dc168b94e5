//! The learning rate of each update.

/// The course of the learning rate after the warm-up.
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

/// The learning rates of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The course after the warm-up.
    pub shape: Shape,
    /// The highest rate.
    pub peak: f64,
    /// Number of updates of the warm-up, in which the rate rises linearly. Its last update has the highest rate.
    pub warm_up: u64,
    /// Number of all updates.
    pub updates: u64,
    /// The final rate of a falling course, divided by the highest rate.
    pub floor: f64,
}

impl Schedule {
    /// The learning rate of update `update`, counted from 0.
    ///
    /// After the warm-up, rates are those of transformers' schedules. During the warm-up, each is theirs for the next update,
    /// because their first update has rate 0 and changes nothing.
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
