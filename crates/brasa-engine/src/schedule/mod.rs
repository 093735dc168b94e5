//! The scheduler: pure functions from plain data to decisions. Nothing in this folder uses a device, a text or a clock.
//!
//! The worker describes the requests, calls [`plan`], carries out the decision, and calls it again. [`plan`] returns one decision
//! at a time, so every decision follows from the state after the last one. If pages run out during a step, [`give_way`] decides.
//!
//! # Rules
//!
//! - Every decoding request has its row in every step. Prompts share the rows that are left: all of a step if no request decodes,
//!   [`Limits::mixed_rows`] otherwise, so that a long prompt does not stall the others. [`StepCosts`] learns from past steps how
//!   many rows make a step at most three times as long as decoding alone, and as the usual gap of late. Short prompts go first,
//!   but half of the rows are the most senior one's.
//! - A request that reads logits is a prompt whose last rows count among the logits of a step. Rows before them are computed
//!   apart unless it reads a single one.
//! - A waiting request is admitted when the step has a row for it and the cache has room for it. Nobody passes a request that
//!   waits for room.
//! - [`Standing`] is the order of requests: higher priorities first, then first come, first served. Among waiting
//!   requests of one priority, those that were admitted before go first, then those with more cached pages. A request that
//!   was overtaken [`MOST_OVERTAKEN`] times goes before all others, so nobody starves.
//! - A request whose prompt begins like a prompt that is being computed waits for it and finds it cached.
//! - If nobody can be admitted and all decode, the step is the beginning of a chain. A row that ends makes a place, so it ends
//!   the chain if somebody waits.
//! - Where all decode, [`share_drafts`] gives rows to drafts, as many as make most tokens a second.
//! - If pages run out, texts at rest give way first, then the most junior request is *preempted*: it gives its pages back and
//!   waits for another admission with all its tokens. A request fails only if it alone cannot fit.

mod admission;
mod costs;
mod drafts;
#[cfg(test)]
mod gaps;
mod limits;
mod recent;
mod room;
mod rows;
mod shortage;
#[cfg(test)]
mod simulation;
mod standing;
#[cfg(test)]
mod table;

pub(crate) use admission::{Candidate, MOST_CANDIDATES};
pub(crate) use costs::StepCosts;
pub(crate) use drafts::{least_hope, least_model_hope, share_drafts};
pub(crate) use limits::{Active, Limits};
pub(crate) use recent::RecentGaps;
pub(crate) use room::Room;
pub(crate) use rows::StepPlan;
pub(crate) use shortage::{GiveWay, give_way};
#[cfg(test)]
pub(crate) use standing::MOST_OVERTAKEN;
pub(crate) use standing::Standing;

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The candidate of this number becomes active; then plan again.
    Admit(usize),
    /// Run a step.
    Step(StepPlan),
    /// No request can run.
    Rest,
}

/// The next decision for the `active` requests, senior first, and the `candidates`, the first of the waiting requests.
pub(crate) fn plan(active: &[Active], candidates: &[Candidate], limits: &Limits) -> Plan {
    let step = rows::compose(active, limits);
    if active.len() < limits.max_active
        && step.rows_left > 0
        && let Some(place) = admission::next(active, candidates, limits)
    {
        return Plan::Admit(place);
    }
    if active.is_empty() { Plan::Rest } else { Plan::Step(step) }
}
