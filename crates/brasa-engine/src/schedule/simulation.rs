//! Random schedules on plain data: arrivals, cancels, priorities, shared prefixes and too few pages, without a device.

use std::collections::HashSet;

use brasa_graph::step::PAGE_POSITIONS;
use brasa_graph::testing::Random;

use super::*;

/// A simulated request and its progress.
#[derive(Clone, Debug)]
struct Text {
    standing: Standing,
    arrives: usize,
    cancelled: Option<usize>,
    prompt: usize,
    answer: usize,
    /// The family of the text. Texts of one family begin with the same pages.
    family: usize,
    family_pages: usize,
    generated: usize,
    computed: usize,
    pages: usize,
    preemptions: usize,
}

impl Text {
    fn random(random: &mut Random, arrival: usize) -> Self {
        let family_pages = random.below(3);
        let cancelled = (random.below(8) == 0).then(|| random.below(300));
        Self {
            standing: Standing::new(arrival as u64, random.below(3) as i32 - 1),
            arrives: random.below(200),
            cancelled,
            prompt: family_pages * PAGE_POSITIONS + 1 + random.below(900),
            answer: 1 + random.below(400),
            family: random.below(3) * 3 + family_pages,
            family_pages,
            generated: 0,
            computed: 0,
            pages: 0,
            preemptions: 0,
        }
    }

    fn tokens(&self) -> usize {
        self.prompt + self.generated
    }

    fn pending(&self) -> usize {
        self.tokens() - self.computed
    }

    fn need(&self) -> Vec<usize> {
        let positions = self.tokens() + (self.answer - self.generated - 1).min(PAGE_POSITIONS);
        vec![positions.div_ceil(PAGE_POSITIONS).saturating_sub(self.pages)]
    }

    fn shared_tokens(&self) -> usize {
        self.family_pages * PAGE_POSITIONS
    }
}

/// An engine without a model.
struct World {
    random: Random,
    tick: usize,
    total_pages: usize,
    /// Number of pages that the engine counts but that cannot be allocated, as on a device whose memory other programs use.
    imagined_pages: usize,
    idle_sessions: usize,
    limits: Limits,
    coming: Vec<Text>,
    waiting: Vec<Text>,
    /// Active requests, senior first.
    active: Vec<Text>,
    /// Families whose shared pages are cached.
    cached: HashSet<usize>,
    short: bool,
    ended: usize,
    failed: usize,
    preempted: usize,
    chained: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let max_rows = 4 + random.below(300);
        let limits = Limits {
            max_active: 1 + random.below(max_rows.min(8)),
            max_rows,
            max_outs: max_rows,
            mixed_rows: 1 + random.below(max_rows),
            max_chain: 1 + random.below(40),
            waiting: 0,
            room: Room::default(),
            short: false,
        };
        let mut coming: Vec<Text> = (0..=random.below(40)).map(|n| Text::random(&mut random, n)).collect();
        coming.sort_by_key(|text| std::cmp::Reverse(text.arrives));
        for (arrival, text) in coming.iter_mut().rev().enumerate() {
            text.standing.arrival = arrival as u64;
        }
        Self {
            tick: 0,
            total_pages: 4 + random.below(30),
            imagined_pages: random.below(2) * 100,
            idle_sessions: random.below(4),
            limits,
            coming,
            waiting: Vec::new(),
            active: Vec::new(),
            cached: HashSet::new(),
            short: false,
            ended: 0,
            failed: 0,
            preempted: 0,
            chained: 0,
            random,
        }
    }

    fn free_pages(&self) -> usize {
        let held = self.idle_sessions + self.active.iter().map(|text| text.pages).sum::<usize>();
        self.total_pages.checked_sub(held).expect("more pages are held than there are")
    }

    fn run(&mut self) {
        while !(self.coming.is_empty() && self.waiting.is_empty() && self.active.is_empty()) {
            assert!(self.tick < 100_000, "no end: {:?} {:?}", self.active, self.waiting);
            self.tick += 1;
            while self.coming.last().is_some_and(|text| text.arrives <= self.tick) {
                self.waiting.extend(self.coming.pop());
            }
            let (tick, before) = (self.tick, self.active.len());
            for texts in [&mut self.active, &mut self.waiting] {
                let cancelled = texts.extract_if(.., |text| text.cancelled.is_some_and(|at| at <= tick));
                self.ended += cancelled.count();
            }
            self.short &= self.active.len() == before;
            while let Some(place) = self.step() {
                self.admit(place);
            }
        }
    }

    /// Runs a step, or returns the candidate to admit.
    fn step(&mut self) -> Option<usize> {
        self.waiting.sort_by_key(|text| text.standing.turn());
        let candidates = self.candidates();
        let active: Vec<Active> = self
            .active
            .iter()
            .map(|text| Active { pending: text.pending(), reads: 0, need: text.need() })
            .collect();
        let held: usize = self.active.iter().map(|text| text.pages).sum();
        let room = Room {
            pages: vec![self.total_pages + self.imagined_pages - held],
            page_bytes: vec![1],
            growth_bytes: 0,
        };
        let limits = Limits { waiting: self.waiting.len(), room, short: self.short, ..self.limits.clone() };
        match plan(&active, &candidates, &limits) {
            Plan::Admit(place) => {
                assert!(self.active.len() < limits.max_active);
                self.check_order(&candidates, place);
                Some(place)
            }
            Plan::Step(step) => {
                self.check_rows(&step);
                if self.prepare(&step.rows) {
                    self.compute(&step);
                }
                None
            }
            Plan::Rest => {
                assert!(self.active.is_empty() && self.waiting.is_empty(), "somebody could be served");
                None
            }
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |text: &Text| {
            let most = text.shared_tokens().min(text.tokens() - 1) / PAGE_POSITIONS * PAGE_POSITIONS;
            let computed = |other: &Text| other.family == text.family && other.generated == 0;
            let cached = if self.cached.contains(&text.family) { most } else { 0 };
            let coming = if self.active.iter().any(computed) { most } else { 0 };
            Candidate { standing: text.standing, cached, coming, need: text.need() }
        };
        self.waiting.iter().take(MOST_CANDIDATES).map(candidate).collect()
    }

    fn admit(&mut self, place: usize) {
        let cached = self.candidates()[place].cached;
        let mut text = self.waiting.remove(place);
        for waiting in &mut self.waiting {
            waiting.standing.see_admitted(text.standing);
            assert!(waiting.standing.overtaken <= MOST_OVERTAKEN, "{waiting:?} starves");
        }
        // The first page is written with the first step; shared ones are held from the beginning.
        text.computed = cached.min(self.free_pages() * PAGE_POSITIONS);
        text.pages = text.computed / PAGE_POSITIONS;
        text.standing.returning = true;
        self.active.push(text);
        self.active.sort_by_key(|text| text.standing.seniority());
    }

    /// Checks that no request of the same class that came earlier, and could run, is passed over.
    fn check_order(&self, candidates: &[Candidate], place: usize) {
        let chosen = &candidates[place];
        let pages = |candidate: &Candidate| candidate.cached / PAGE_POSITIONS;
        for other in candidates.iter().filter(|other| !other.waits_for_prefix()) {
            let (before, after) = (other.standing, chosen.standing);
            let same = before.class() == after.class() && before.returning == after.returning;
            let passed =
                before.arrival < after.arrival && (before.aged() || same && pages(other) >= pages(chosen));
            assert!(!passed, "{other:?} is passed by {chosen:?}");
            assert!(before.class() >= after.class(), "{other:?} is of a higher class than {chosen:?}");
        }
        let in_vain = |active: &Text| active.generated == 0 && active.family == self.waiting[place].family;
        assert!(
            chosen.standing.aged() || chosen.cached == chosen.coming || !self.active.iter().any(in_vain),
            "{chosen:?} repeats what is being computed"
        );
    }

    fn check_rows(&self, step: &StepPlan) {
        let rows: usize = step.rows.iter().sum();
        assert!(rows > 0 && rows <= self.limits.max_rows, "{step:?}");
        let decodes = |text: &&Text| text.pending() == 1;
        let decoding = self.active.iter().filter(decodes).count();
        for (text, &rows) in self.active.iter().zip(&step.rows) {
            assert!(rows <= text.pending() && (text.pending() > 1 || rows == 1), "{text:?}: {rows} rows");
        }
        assert!(decoding == 0 || rows - decoding <= self.limits.mixed_rows, "{step:?}");
        assert!(step.chain.limit == 1 || decoding == self.active.len(), "{step:?}");
    }

    /// Takes the pages of a step. Returns false if a request had to give up its pages.
    fn prepare(&mut self, rows: &[usize]) -> bool {
        for place in (0..rows.len()).filter(|&place| rows[place] > 0) {
            let text = &self.active[place];
            let more = (text.computed + rows[place]).div_ceil(PAGE_POSITIONS).saturating_sub(text.pages);
            if more <= self.free_pages() {
                self.active[place].pages += more;
                continue;
            }
            let holds: Vec<bool> = self.active.iter().map(|text| text.pages > 0).collect();
            match give_way(self.idle_sessions, &[], &holds, place) {
                GiveWay::Session => self.idle_sessions -= 1,
                GiveWay::AtRest(_) => panic!("nobody at rest holds pages here"),
                GiveWay::Preempt(junior) => {
                    let juniors = &self.active[junior + 1..];
                    assert!(
                        junior >= place && juniors.iter().all(|text| text.pages == 0),
                        "not the youngest"
                    );
                    assert!(junior > 0, "the most senior gives way to nobody");
                    let mut text = self.active.remove(junior);
                    (text.computed, text.pages) = (0, 0);
                    text.preemptions += 1;
                    self.preempted += 1;
                    self.waiting.push(text);
                    self.short = true;
                }
                GiveWay::Fail => {
                    let text = self.active.remove(place);
                    let needed = (text.computed + rows[place]).div_ceil(PAGE_POSITIONS);
                    assert!(needed > self.total_pages, "{text:?} fits alone");
                    self.failed += 1;
                    self.ended += 1;
                    self.short = false;
                }
            }
            return false;
        }
        true
    }

    /// Computes a step, and tokens of its chain within the pages at hand.
    fn compute(&mut self, step: &StepPlan) {
        let arrives = 1 + self.random.below(50);
        let mut left = step.chain.limit.min(arrives);
        if step.chain.limit > 1 {
            let left_of = |text: &Text| {
                (text.pages * PAGE_POSITIONS - text.computed).min(text.answer - text.generated).max(1)
            };
            let shortest = self.active.iter().map(left_of).min().unwrap_or(1);
            left = left.min(shortest);
            self.chained += usize::from(left > 1);
        }
        for (text, &rows) in self.active.iter_mut().zip(&step.rows) {
            let last = text.pending() == rows;
            text.computed += rows;
            if last {
                text.generated += left;
                text.computed += left - 1;
                self.cached.insert(text.family);
            }
        }
        let before = self.active.len();
        self.active.retain(|text| text.generated < text.answer);
        self.ended += before - self.active.len();
        self.short &= before == self.active.len();
        if self.random.below(40) == 0 {
            // Kept prefixes give way as well.
            self.cached.clear();
        }
    }
}

#[test]
fn thousands_of_random_schedules_keep_every_promise() {
    let schedules = 2_000 + 10_000 * brasa_fuzz::sweep_times();
    let (mut failed, mut preempted, mut chained, mut requests) = (0, 0, 0, 0);
    for seed in 0..schedules {
        let mut world = World::new(seed);
        let all = world.coming.len();
        world.run();
        assert_eq!(world.ended, all, "schedule {seed}");
        requests += all;
        failed += world.failed;
        preempted += world.preempted;
        chained += world.chained;
    }
    // The schedules have met what they are about.
    assert!(
        failed > 20 && failed < requests / 10 && preempted > 1000 && chained > 10_000,
        "{failed} {preempted} {chained}"
    );
}
