//! A chain of one row: the device draws, the host watches.

use std::time::Duration;

use brasa_graph::chain::{Chain, Flow, go_on};
use brasa_graph::device::{DeviceError, DrawInputs};
use brasa_graph::step::Step;

use super::program::{NO_TOKEN, TOKEN_IS_THERE};
use super::{CANCEL, Draws, Interpreter, MAX_CHAIN, TOKENS};
use crate::draw::Drawer;
use crate::kv::CudaKvPool;

/// How a chain on the device came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The row has ended, with this many cached positions.
    Ended(usize),
    /// The logits of the step's row have no largest finite element. The host draws, or reports why it cannot.
    Undrawn,
}

/// The host looks for a token this often.
const PAUSE: Duration = Duration::from_micros(20);
/// Looks before the first pause, and between two questions whether the launch still runs.
const EAGER_LOOKS: usize = 200;
const LOOKS_PER_QUESTION: usize = 50;

/// Ends a launch when it is dropped, even if the sink panics. Tokens drawn behind the last one that counts are discarded.
struct Ending<'a>(&'a Interpreter);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.shared.store(CANCEL, 1);
        // A failure shows at the next call.
        let _ = self.0.gpu.synchronize();
    }
}

impl Interpreter {
    /// Decodes a step that it [takes](Self::takes), whose row takes the largest logits. `step` is left with the row that was
    /// computed last.
    pub(crate) fn run_chain(
        &mut self,
        step: &mut Step,
        pool: &CudaKvPool,
        chain: &mut Chain<'_, '_>,
    ) -> Result<Outcome, DeviceError> {
        loop {
            let steps = chain.rows[0].limit.min(MAX_CHAIN);
            self.load(&step.segments[0], pool)?;
            self.shared.clear();
            self.launch(steps, chain.rows[0].stops, Draws::Largest)?;
            let watched = {
                let _ending = Ending(self);
                self.watch(steps, step, chain)
            };
            self.gpu.synchronize()?;
            if let Some(outcome) = watched? {
                return Ok(outcome);
            }
        }
    }

    /// Decodes a step that it [takes](Self::takes), whose row `drawer` can draw for without the tokens before it: what computes and draws
    /// each token is queued ahead, and the host watches. `step` is left with the row that was computed last.
    pub(crate) fn run_drawn_chain(
        &mut self,
        step: &mut Step,
        pool: &CudaKvPool,
        chain: &mut Chain<'_, '_>,
        drawer: &mut Drawer,
    ) -> Result<Outcome, DeviceError> {
        loop {
            let row = &chain.rows[0];
            let (steps, rules) = (row.limit.min(MAX_CHAIN), row.rules);
            let draws: Vec<DrawInputs<'_>> = (row.position..)
                .take(steps)
                .map(|position| DrawInputs { rules, position, history: &[], masked: false })
                .collect();
            self.load(&step.segments[0], pool)?;
            drawer.load(self.vocab_size as u32, 1, &draws, row.stops, &mut |_, _| Ok(()))?;
            self.shared.clear();
            let queued = (0..steps).try_for_each(|drawn| {
                let logits = self.queue()?;
                let [shown, cancel] = [TOKENS + drawn, CANCEL].map(|word| self.shared.address(word));
                drawer.queue_and_hand_on(logits, drawn, [self.state.address(), shown, cancel])
            });
            let watched = {
                let _ending = Ending(self);
                queued.and_then(|()| self.watch(steps, step, chain))
            };
            self.gpu.synchronize()?;
            if let Some(outcome) = watched? {
                return Ok(outcome);
            }
        }
    }

    /// Hands the tokens of a launch to the sink as they appear; `None` if the row goes on behind them.
    fn watch(
        &self,
        steps: usize,
        step: &mut Step,
        chain: &mut Chain<'_, '_>,
    ) -> Result<Option<Outcome>, DeviceError> {
        let segment = &mut step.segments[0];
        for drawn in 0..steps {
            let token = self.wait(drawn)?;
            if token == NO_TOKEN {
                return Ok(Some(Outcome::Undrawn));
            }
            let row = &mut chain.rows[0];
            let draw = row.take(token);
            let goes_on = row.goes_on(token);
            let flow = (chain.sink)(0, Ok(draw));
            if !goes_on || flow != Flow::Continue {
                return Ok(Some(Outcome::Ended(segment.first_index + segment.rows)));
            }
            go_on(segment, token);
        }
        Ok(None)
    }

    /// Waits for token `number` of a launch.
    fn wait(&self, number: usize) -> Result<u32, DeviceError> {
        let found = || {
            let word = self.shared.load(TOKENS + number);
            (word & TOKEN_IS_THERE != 0).then_some(word as u32)
        };
        for look in 0_usize.. {
            if let Some(token) = found() {
                return Ok(token);
            }
            if look < EAGER_LOOKS {
                std::hint::spin_loop();
                continue;
            }
            if look.is_multiple_of(LOOKS_PER_QUESTION) && !self.gpu.is_busy()? {
                // What was written before the launch ended is there now.
                return found().ok_or_else(|| self.gpu.lost("a chain ended without its token"));
            }
            std::thread::sleep(PAUSE);
        }
        unreachable!("the loop has no end")
    }
}
