//! The learning rates of a run: Brasa's schedule, or one of MLX-LM's.

use serde_json::Value;

use super::Schedule;
use crate::{Result, TrainError};

/// The learning rate of each update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rates {
    /// A schedule with the shapes of transformers.
    Schedule(Schedule),
    /// A schedule of MLX-LM.
    Mlx(MlxSchedule),
}

/// A schedule of MLX-LM's configurations (`lr_schedule`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlxSchedule {
    /// The course after the warm-up.
    pub course: MlxCourse,
    /// Number of updates of the warm-up; 0 for no warm-up. The update after it has the highest rate.
    pub warm_up: u64,
    /// The rate that the warm-up begins with.
    pub warm_up_from: f64,
}

/// Courses of `mlx.optimizers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlxCourse {
    /// Half a cosine from one rate to another.
    Cosine {
        /// The first rate.
        from: f64,
        /// Number of updates of the course.
        updates: u64,
        /// The last rate.
        to: f64,
    },
    /// A linear change from one rate to another.
    Linear {
        /// The first rate.
        from: f64,
        /// The last rate.
        to: f64,
        /// Number of updates of the course.
        updates: u64,
    },
    /// A rate that is multiplied by a factor at regular intervals.
    Decay {
        /// The first rate.
        from: f64,
        /// The factor.
        factor: f64,
        /// Number of updates between two multiplications.
        every: u64,
    },
}

impl From<Schedule> for Rates {
    fn from(schedule: Schedule) -> Self {
        Self::Schedule(schedule)
    }
}

impl Rates {
    /// The learning rate of update `update`, counted from 0.
    pub fn rate(&self, update: u64) -> f64 {
        match self {
            Self::Schedule(schedule) => schedule.rate(update),
            Self::Mlx(schedule) => schedule.rate(update),
        }
    }
}

impl MlxCourse {
    fn rate(self, update: u64) -> f64 {
        match self {
            Self::Cosine { from, updates, to } => {
                let share = update.min(updates) as f64 / updates as f64;
                to + 0.5 * (1.0 + (std::f64::consts::PI * share).cos()) * (from - to)
            }
            Self::Linear { from, to, updates } => {
                from + update.min(updates) as f64 * ((to - from) / updates as f64)
            }
            Self::Decay { from, factor, every } => from * factor.powf((update / every) as f64),
        }
    }
}

impl MlxSchedule {
    /// The learning rate of update `update`, counted from 0.
    pub fn rate(&self, update: u64) -> f64 {
        if self.warm_up == 0 {
            return self.course.rate(update);
        }
        if update > self.warm_up {
            return self.course.rate(update - self.warm_up - 1);
        }
        let (from, to, updates) = (self.warm_up_from, self.course.rate(0), self.warm_up);
        MlxCourse::Linear { from, to, updates }.rate(update)
    }

    /// Reads `{"name": "cosine_decay", "arguments": [1e-5, 1000, 1e-7], "warmup": 100, "warmup_init": 1e-7}`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`], naming the key with the mistake.
    pub fn parse(value: &Value) -> Result<Self> {
        let refuse = |what: String| {
            let hint = "a schedule has a name (cosine_decay, linear_schedule, exponential_decay or step_decay), its arguments, and perhaps warmup and warmup_init";
            Err(TrainError::setting(format!("lr_schedule: {what}"), hint))
        };
        let Some(fields) = value.as_object() else { return refuse(format!("{value}")) };
        let keys = ["name", "arguments", "warmup", "warmup_init"];
        if let Some(key) = fields.keys().find(|key| !keys.contains(&key.as_str())) {
            return refuse(format!("unknown key {key}"));
        }
        let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
        let arguments = fields.get("arguments").and_then(Value::as_array);
        let arguments: Option<Vec<f64>> =
            arguments.map(|all| all.iter().map(Value::as_f64).collect()).unwrap_or_default();
        let whole = |number: f64| (number >= 1.0 && number.fract() == 0.0).then_some(number as u64);
        let course = match (name, arguments.as_deref()) {
            ("cosine_decay", Some(&[from, updates])) => {
                whole(updates).map(|updates| MlxCourse::Cosine { from, updates, to: 0.0 })
            }
            ("cosine_decay", Some(&[from, updates, to])) => {
                whole(updates).map(|updates| MlxCourse::Cosine { from, updates, to })
            }
            ("linear_schedule", Some(&[from, to, updates])) => {
                whole(updates).map(|updates| MlxCourse::Linear { from, to, updates })
            }
            ("exponential_decay", Some(&[from, factor])) => Some(MlxCourse::Decay { from, factor, every: 1 }),
            ("step_decay", Some(&[from, factor, every])) => {
                whole(every).map(|every| MlxCourse::Decay { from, factor, every })
            }
            _ => None,
        };
        let Some(course) = course else { return refuse(format!("{value}")) };
        let number = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(0.0),
            Some(value) => match value.as_f64().filter(|number| *number >= 0.0) {
                Some(number) => Ok(number),
                None => refuse(format!("{key} {value}")).map(|_: Self| 0.0),
            },
        };
        let (warm_up, warm_up_from) = (number("warmup")?, number("warmup_init")?);
        if warm_up.fract() != 0.0 {
            return refuse(format!("warmup {warm_up}"));
        }
        Ok(Self { course, warm_up: warm_up as u64, warm_up_from })
    }
}
