//! Chooses which request gives way when pages run out.

/// Which request or kept text gives up its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveWay {
    /// The pages of the session that has been idle longest.
    Session,
    /// The pages of a request at rest, by its number.
    AtRest(usize),
    /// The pages of an active request, by its number. It waits to be admitted again.
    Preempt(usize),
    /// The request that is short of pages fails: it cannot fit even alone.
    Fail,
}

/// Chooses the session or request that gives its pages to the active request `short`.
///
/// `at_rest` says which requests that are not active hold pages, and `active` says so of the active ones. In both lists the last
/// ones give way first.
pub(crate) fn give_way(idle_sessions: usize, at_rest: &[bool], active: &[bool], short: usize) -> GiveWay {
    if idle_sessions > 0 {
        return GiveWay::Session;
    }
    if let Some(junior) = at_rest.iter().rposition(|&holds_pages| holds_pages) {
        return GiveWay::AtRest(junior);
    }
    let others = active.iter().enumerate().filter(|&(place, &holds_pages)| place != short && holds_pages);
    match others.map(|(place, _)| place).next_back() {
        None => GiveWay::Fail,
        Some(other) => GiveWay::Preempt(other.max(short)),
    }
}
