//! Tests of the scheduler's rules on small cases, one rule each.

use super::*;

/// An active request that lacks no page.
fn active(pending: usize) -> Active {
    Active { pending, reads: 0, need: vec![0] }
}

/// A waiting request that needs one page.
fn waiting(arrival: u64) -> Candidate {
    Candidate { standing: Standing::new(arrival, 0), cached: 0, coming: 0, need: vec![1] }
}

fn with(arrival: u64, change: impl FnOnce(&mut Candidate)) -> Candidate {
    let mut candidate = waiting(arrival);
    change(&mut candidate);
    candidate
}

fn limits(waiting: usize) -> Limits {
    let room = Room { pages: vec![100], page_bytes: vec![10], growth_bytes: 0 };
    Limits {
        max_active: 4,
        max_rows: 64,
        max_outs: 8,
        mixed_rows: 16,
        max_chain: 32,
        waiting,
        room,
        short: false,
    }
}

fn step(pending: &[usize], limits: &Limits) -> StepPlan {
    let active: Vec<Active> = pending.iter().map(|&pending| active(pending)).collect();
    match plan(&active, &[], limits) {
        Plan::Step(step) => step,
        other => panic!("{other:?} for {pending:?}"),
    }
}

fn admitted(running: &[Active], candidates: &[Candidate], limits: &Limits) -> Option<usize> {
    match plan(running, candidates, limits) {
        Plan::Admit(place) => Some(place),
        _ => None,
    }
}

#[test]
fn decoding_requests_have_their_rows_and_prompts_share_the_rest() {
    let rows = |pending: &[usize]| step(pending, &limits(0)).rows;
    assert_eq!(rows(&[1, 1, 1]), [1, 1, 1]);
    assert_eq!(rows(&[500]), [64], "a prompt alone has the whole step");
    assert_eq!(rows(&[40, 500]), [40, 24], "senior prompts first");
    assert_eq!(rows(&[500, 40]), [32, 32], "but a short one has up to half of the rows");
    assert_eq!(rows(&[500, 600, 10]), [54, 0, 10], "the shortest first");
    assert_eq!(rows(&[500, 1, 7]), [9, 1, 7], "beside a decoding request a prompt has less");
    assert_eq!(rows(&[10, 1, 7]), [9, 1, 7]);
    let narrow = Limits { max_rows: 4, ..limits(0) };
    assert_eq!(step(&[1, 1, 1, 9], &narrow).rows, [1, 1, 1, 1]);
}

#[test]
fn requests_that_read_share_the_rows_that_have_logits() {
    let reads = |texts: &[(usize, usize)]| {
        let active = texts.iter().map(|&(pending, reads)| Active { reads, ..active(pending) });
        match plan(&active.collect::<Vec<_>>(), &[], &limits(0)) {
            Plan::Step(step) => (step.rows, step.chain.limit),
            other => panic!("{other:?} for {texts:?}"),
        }
    };
    assert_eq!(reads(&[(50, 50)]), (vec![8], 1), "as many rows as may have logits");
    assert_eq!(reads(&[(50, 40)]), (vec![10], 1), "rows before those that are read have a step of their own");
    assert_eq!(reads(&[(50, 1)]), (vec![50], 1), "unless a single row is read");
    assert_eq!(reads(&[(1, 1)]), (vec![1], 1), "the last row of a reader is no decoding row");
    assert_eq!(reads(&[(1, 0), (1, 0), (50, 50)]), (vec![1, 1, 6], 1), "those that draw have theirs");
    assert_eq!(reads(&[(5, 5), (50, 50), (50, 1), (9, 5)]), (vec![5, 3, 49, 4], 1));
}

#[test]
fn a_chain_goes_on_while_nobody_can_be_admitted() {
    let chain = |pending: &[usize], waiting| step(pending, &limits(waiting)).chain;
    let expected =
        |limit, ends_with_row, ends_on_arrival| rows::ChainPlan { limit, ends_with_row, ends_on_arrival };
    assert_eq!(chain(&[1, 1], 0), expected(32, false, true));
    assert_eq!(chain(&[1, 1, 1, 1], 0), expected(32, false, false));
    assert_eq!(chain(&[1, 1, 1, 1], 3), expected(32, true, false), "full: the rest waits for a row to end");
    assert_eq!(chain(&[1, 2], 0), expected(1, false, true), "a prompt");
    // No room for the next page of the one and the page of the other.
    let short = Limits { room: Room { pages: vec![1], ..limits(1).room }, ..limits(1) };
    let running = [Active { pending: 1, reads: 0, need: vec![1] }];
    let Plan::Step(step) = plan(&running, &[waiting(1)], &short) else { panic!("no room") };
    assert_eq!(step.chain, expected(32, true, true));
}

#[test]
fn requests_are_admitted_in_order() {
    let order = |candidates: &[Candidate]| admitted(&[active(1)], candidates, &limits(candidates.len()));
    assert_eq!(order(&[]), None);
    assert_eq!(order(&[waiting(2), waiting(1)]), Some(1), "first come, first served");
    let preferred = |change: fn(&mut Candidate)| order(&[waiting(1), with(2, change)]) == Some(1);
    assert!(preferred(|it| it.standing.priority = 1));
    assert!(preferred(|it| it.standing.returning = true));
    assert!(preferred(|it| it.cached = 256));
    assert!(!preferred(|it| it.cached = 255), "less than a page");
    assert!(!preferred(|it| (it.standing.priority, it.cached) = (-1, 4096)), "priority before cache");
    assert!(preferred(|it| it.standing.overtaken = MOST_OVERTAKEN));
    let aged = with(1, |it| (it.standing.priority, it.standing.overtaken) = (-9, MOST_OVERTAKEN));
    assert_eq!(order(&[with(2, |it| it.standing.priority = 9), aged]), Some(1), "age before priority");
}

#[test]
fn a_request_is_admitted_if_there_is_a_place_a_row_and_room() {
    let one = [waiting(1)];
    assert_eq!(admitted(&[active(1), active(1)], &one, &limits(1)), Some(0));
    assert_eq!(admitted(&vec![active(1); 4], &one, &limits(1)), None, "no place");
    assert_eq!(admitted(&[active(1), active(16)], &one, &limits(1)), Some(0), "beside a prompt");
    let many = Limits { max_active: 8, ..limits(1) };
    assert_eq!(admitted(&vec![active(16); 3], &one, &many), Some(0));
    assert_eq!(admitted(&vec![active(16); 4], &one, &many), None, "no row behind four prompts");
    let narrow = Limits { max_rows: 2, ..many };
    assert_eq!(admitted(&[active(1), active(16)], &one, &narrow), None, "no row beside those that decode");
    assert_eq!(admitted(&[active(1)], &one, &Limits { short: true, ..limits(1) }), None);
    let room = |pages, growth_bytes| Limits {
        room: Room { pages: vec![pages], page_bytes: vec![10], growth_bytes },
        ..limits(2)
    };
    let grows = [Active { pending: 1, reads: 0, need: vec![1] }];
    assert_eq!(admitted(&grows, &one, &room(2, 0)), Some(0));
    assert_eq!(admitted(&grows, &one, &room(1, 9)), None);
    assert_eq!(admitted(&grows, &one, &room(1, 10)), Some(0));
    // Nobody passes a request that waits for room; alone it is admitted whatever there is.
    let two = [with(1, |it| it.need = vec![50]), waiting(2)];
    assert_eq!(admitted(&[active(1)], &two, &room(9, 0)), None);
    assert_eq!(admitted(&[], &two, &room(9, 0)), Some(0));
    assert_eq!(plan(&[], &[], &limits(0)), Plan::Rest);
}

#[test]
fn a_request_waits_for_a_prefix_that_is_being_computed() {
    let running = [active(10)];
    let same = with(1, |it| it.coming = 512);
    assert_eq!(admitted(&running, std::slice::from_ref(&same), &limits(1)), None);
    assert_eq!(admitted(&running, &[same.clone(), waiting(2)], &limits(2)), Some(1), "others pass it");
    let cached = with(1, |it| (it.cached, it.coming) = (512, 512));
    assert_eq!(admitted(&running, &[cached], &limits(1)), Some(0), "it has what it could wait for");
    let aged = with(1, |it| (it.coming, it.standing.overtaken) = (512, MOST_OVERTAKEN));
    assert_eq!(admitted(&running, &[aged, waiting(2)], &limits(2)), Some(0));
}

#[test]
fn the_most_junior_gives_way() {
    assert_eq!(give_way(1, &[true], &[true, true], 0), GiveWay::Session);
    assert_eq!(give_way(0, &[true, true, false], &[true, true], 0), GiveWay::AtRest(1));
    assert_eq!(give_way(0, &[false], &[true, true, true], 0), GiveWay::Preempt(2));
    assert_eq!(give_way(0, &[], &[true, true, true], 2), GiveWay::Preempt(2), "itself");
    assert_eq!(give_way(0, &[], &[true, true, false], 2), GiveWay::Preempt(2), "itself, without a page");
    assert_eq!(
        give_way(0, &[], &[true, true, false], 1),
        GiveWay::Preempt(1),
        "a junior has nothing to give"
    );
    assert_eq!(give_way(0, &[], &[false, true, false], 0), GiveWay::Preempt(1));
    assert_eq!(give_way(0, &[], &[true], 0), GiveWay::Fail);
    assert_eq!(give_way(0, &[], &[true, false], 0), GiveWay::Fail, "it alone has all pages");
}

#[test]
fn room_is_counted_by_group_and_in_bytes() {
    let room = |growth_bytes| Room { pages: vec![3, 0], page_bytes: vec![10, 4], growth_bytes };
    assert!(room(8).take(&[3, 2]));
    assert!(!room(7).take(&[3, 2]));
    assert!(room(18).take(&[4, 2]));
    assert!(!room(17).take(&[4, 2]), "pages of one group are no pages of another");
    let mut room = room(8);
    assert!(room.take(&[1, 1]) && room.take(&[2, 1]) && room.take(&[0, 0]) && !room.take(&[1, 0]));
}
