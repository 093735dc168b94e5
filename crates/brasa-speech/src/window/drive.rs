//! Tasks of several windows in common steps.

use std::ops::ControlFlow;

use brasa_graph::device::DeviceError;

use super::WindowTask;
use crate::recogniser::{Recogniser, Rows};
use crate::{Result, SpeechError};

/// Runs tasks to their ends, their rows together in steps. `going` is called before each step, and `Break` cancels.
///
/// # Errors
///
/// Errors of the device; [`DeviceError::Cancelled`] if `going` returns `Break`. All texts of the tasks are ended.
pub fn run_tasks(
    tasks: &mut [WindowTask],
    recogniser: &mut dyn Recogniser,
    going: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<()> {
    let result = run(tasks, recogniser, going);
    if result.is_err() {
        for task in tasks {
            task.abandon(recogniser);
        }
    }
    result
}

fn run(
    tasks: &mut [WindowTask],
    recogniser: &mut dyn Recogniser,
    going: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<()> {
    let shape = recogniser.shape();
    while tasks.iter().any(|task| !task.is_finished()) {
        let mut from = 0;
        while from < tasks.len() {
            if going().is_break() {
                return Err(SpeechError::Device(DeviceError::Cancelled));
            }
            // As many tasks as one step takes, and at least one.
            let (mut rows, mut parts): (Vec<Rows>, _) = (Vec::new(), Vec::new());
            let (mut tokens, mut outs) = (0, 0);
            for (number, task) in tasks.iter_mut().enumerate().skip(from) {
                if tokens + task.most_rows() > shape.max_rows || outs + task.most_outs() > shape.max_outs {
                    if parts.is_empty() {
                        return Err(SpeechError::Options { what: too_large(task, shape.max_rows) });
                    }
                    break;
                }
                let wanted = task.wants(recogniser)?;
                tokens += wanted.iter().map(|rows| rows.tokens.len()).sum::<usize>();
                let count: usize = wanted.iter().map(Rows::outs).sum();
                outs += count;
                parts.push((number, count));
                rows.extend(wanted);
                from = number + 1;
            }
            if rows.is_empty() {
                continue;
            }
            // Copied, because tasks fork and end texts while they look at the rows.
            let logits = recogniser.run(&rows)?.to_vec();
            let mut each = logits.chunks_exact(shape.vocab_size);
            for (number, count) in parts {
                let rows: Vec<&[f32]> = each.by_ref().take(count).collect();
                if count > 0 {
                    tasks[number].accept(&rows, recogniser)?;
                }
            }
        }
    }
    Ok(())
}

fn too_large(task: &WindowTask, max_rows: usize) -> String {
    format!("a step of {} rows for one window, at most {max_rows} fit", task.most_rows())
}
