//! Readers of streams: fragments up to a stop, polled or waited for, read late, cancelled, or refused at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use brasa_engine::{
    Engine, EngineError, FinishReason, Fragment, GenerateOptions, PlainIds, Request, RequestOptions,
    SessionId, TextDecoder, TokenStream,
};

use brasa_graph::device::KvType;

use super::{VOCAB, engine, engine_of, ids, limit, prompt, start, while_held};

#[test]
pub fn stop_ids_and_strings_end_the_text_before_them() {
    let engine = engine(512, 64, 2);
    let run_with = |options: GenerateOptions, end_ids: Vec<u32>| {
        let end_id = end_ids.first().copied();
        let request =
            Request { prompt: prompt(20, 2), options, end_ids, decoder: Box::new(Letters), session: None };
        let mut stream = engine.generate(request).unwrap();
        let fragments: Vec<_> = (&mut stream).map(|fragment| fragment.unwrap()).collect();
        let text: String = fragments.iter().map(|fragment| fragment.text.as_str()).collect();
        let tokens = fragments.iter().filter(|fragment| fragment.token.is_some()).count();
        let reason = stream.finish_reason().unwrap();
        let ended_at = match reason {
            FinishReason::End => end_id,
            FinishReason::Id(id) => Some(id),
            _ => None,
        };
        assert_eq!(stream.end_token().map(|token| token.id), ended_at);
        (text, tokens, reason)
    };
    let run = |options| run_with(options, Vec::new());
    let (text, count, reason) = run(limit(30));
    assert_eq!((count, reason), (30, FinishReason::Length));
    assert_eq!(text.len(), 31);

    let stop = text[10..13].to_owned();
    let before = text.find(&stop).unwrap();
    let (stopped, _, reason) = run(GenerateOptions { stop_strings: vec![stop.clone()], ..limit(30) });
    assert_eq!((stopped.as_str(), reason), (&text[..before], FinishReason::Text(0)));
    // The stop string that is complete first ends the text, and the longest of those that are complete at once.
    let several =
        ["\0", &text[9..14], &text[12..13], &text[10..13], &text[11..13]].map(String::from).to_vec();
    let (stopped, _, reason) = run(GenerateOptions { stop_strings: several.clone(), ..limit(30) });
    let first = (1..=text.len()).find_map(|end| {
        let complete = several.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
        complete.map(|(place, stop)| (end - stop.len(), place)).min()
    });
    let (before_first, place) = first.unwrap();
    assert_eq!((stopped.as_str(), reason), (&text[..before_first], FinishReason::Text(place)));

    let id = u32::from(text.as_bytes()[7] - b'A');
    let before = text.find(char::from(b'A' + id as u8)).unwrap();
    let (stopped, count, reason) = run(GenerateOptions { stop_ids: vec![id], ..limit(30) });
    assert_eq!((&stopped[..before], count, reason), (&text[..before], before, FinishReason::Id(id)));

    // The model's own end is another cause, which alone can be ignored.
    let ended = run_with(limit(30), vec![id]);
    assert_eq!((&ended.0[..before], ended.1, ended.2), (&text[..before], before, FinishReason::End));
    let ignoring = GenerateOptions { ignore_eos: true, ..limit(30) };
    assert_eq!(run_with(ignoring.clone(), vec![id]).0, text);
    let stopped = GenerateOptions { stop_ids: vec![id], ..ignoring.clone() };
    assert_eq!(run_with(stopped, vec![id]).2, FinishReason::Id(id));
    let stopped = GenerateOptions { stop_strings: vec![stop], ..ignoring };
    assert_eq!(run_with(stopped, vec![id]).2, FinishReason::Text(0));
    let refused = |options: GenerateOptions| options.validate().unwrap_err().to_string();
    let many = GenerateOptions { stop_strings: vec!["a".into(); 257], ..limit(1) };
    assert!(refused(many).contains("257 stop strings"));
    let long = GenerateOptions { stop_strings: vec!["a".repeat(1 << 19)], ..limit(1) };
    assert!(refused(long).contains("524288 bytes"));
}

#[test]
pub fn the_last_fragment_holds_the_text_that_was_held_back() {
    let engine = engine(64, 64, 2);
    let run = |options: GenerateOptions| {
        let request = Request {
            prompt: prompt(20, 2),
            options,
            end_ids: Vec::new(),
            decoder: Box::new(Letters),
            session: None,
        };
        engine.generate(request).unwrap()
    };
    let whole = run(limit(10)).into_text().unwrap();
    assert_eq!((whole.len(), &whole[10..]), (11, "~"), "the last of ten tokens takes the rest along");
    // Without a last token the rest comes by itself: behind a stopping token, and before an error.
    let stop = u32::from(whole.as_bytes()[9] - b'A');
    let fragments: Vec<_> = run(GenerateOptions { stop_ids: vec![stop], ..limit(10) }).collect();
    assert_eq!(fragments.last(), Some(&Ok(Fragment { text: "~".into(), token: None })));
    let held = GenerateOptions { stop_strings: vec!["\0".repeat(50)], ..GenerateOptions::default() };
    let fragments: Vec<_> = run(held).collect();
    assert_eq!(fragments.len(), 20 + 26, "45 tokens fit behind 20, and the error: {fragments:?}");
    assert_eq!(fragments.last(), Some(&Err(EngineError::ContextFull { context: 64 })));
    let last = fragments[fragments.len() - 2].as_ref().unwrap();
    assert!(last.token.is_some() && last.text.ends_with('~'), "{last:?}");
}

#[test]
pub fn a_reader_hears_how_far_a_prompt_has_come() {
    let text = prompt(300, 2);
    let engine = engine_of(&[None], KvType::F32, 512, 64, 2, 1 << 20);
    let same = ids(&mut start(&engine, text.clone(), &limit(5), None));
    let run = |text: &[u32]| {
        let options = GenerateOptions { report_prefill: true, ..limit(5) };
        let mut stream = start(&engine, text.to_vec(), &options, None);
        let (mut reports, mut tokens) = (Vec::new(), Vec::new());
        while let Some(fragment) = stream.next() {
            let (fragment, metrics) = (fragment.unwrap(), *stream.metrics());
            assert_eq!(metrics.prompt_tokens, text.len());
            match fragment.token {
                None => {
                    assert_eq!((fragment.text.as_str(), tokens.len()), ("", 0));
                    reports.push((metrics.cached_tokens, metrics.prefilled_tokens, metrics.prefill_time));
                }
                Some(token) => {
                    tokens.push(token.id);
                    assert_eq!(metrics.generated_tokens, tokens.len());
                }
            }
        }
        assert!(reports.is_sorted_by_key(|report| report.2), "{reports:?}");
        (reports.into_iter().map(|report| (report.0, report.1)).collect::<Vec<_>>(), tokens)
    };
    // The whole prompt but its last token is cached.
    assert_eq!(run(&text), (vec![(299, 299), (299, 300)], same));
    let other = prompt(300, 3);
    let (reports, _) = run(&other);
    assert_eq!((reports[0], reports[reports.len() - 1]), ((0, 0), (0, 300)), "{reports:?}");
    // Steps have at most 64 rows.
    assert!(reports.windows(2).all(|pair| (1..=64).contains(&(pair[1].1 - pair[0].1))), "{reports:?}");
    let plain: Vec<_> = start(&engine, prompt(300, 4), &limit(5), None).collect();
    assert_eq!(plain.len(), 5, "nobody asked for reports");
}

#[test]
pub fn a_stream_can_be_polled() {
    struct Flag(AtomicUsize);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let engine = engine(512, 64, 2);
    let expected = ids(&mut start(&engine, prompt(20, 2), &limit(12), None));
    let flag = Arc::new(Flag(AtomicUsize::new(0)));
    let waker = std::task::Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    let mut stream = None;
    while_held(&engine, || {
        let stream = stream.insert(start(&engine, prompt(20, 2), &limit(12), None));
        assert!(stream.try_next().is_pending() && stream.poll_next(&mut context).is_pending());
    });
    let mut stream = stream.unwrap();
    let mut found = Vec::new();
    let mut woken = 0;
    loop {
        // The first poll has been made; each that finds nothing is followed by a call of the waker.
        while flag.0.load(Ordering::SeqCst) == woken {
            std::thread::yield_now();
        }
        woken = flag.0.load(Ordering::SeqCst);
        let poll = loop {
            match stream.poll_next(&mut context) {
                Poll::Ready(Some(fragment)) => found.push(fragment.unwrap().token.unwrap().id),
                poll => break poll,
            }
        };
        if poll.is_ready() {
            break;
        }
    }
    assert_eq!(found, expected);
    assert!(stream.poll_next(&mut context).is_ready() && stream.try_next() == Poll::Ready(None));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
}

#[test]
pub fn a_reader_who_is_behind_pauses_its_generation_alone() {
    let expected = ids(&mut start(&engine(16_384, 64, 1), prompt(10, 0), &limit(700), None));
    // One request at a time: a paused one must not keep the others out.
    let engine = engine(16_384, 64, 1);
    let ahead = |run_ahead| GenerateOptions {
        request: RequestOptions { run_ahead, ..RequestOptions::default() },
        ..limit(700)
    };
    for run_ahead in [1, 2, 33] {
        let mut slow = start(&engine, prompt(10, 0), &ahead(run_ahead), None);
        let mut first = vec![slow.next().unwrap().unwrap().token.unwrap().id];
        for seed in 0..3 {
            assert_eq!(start(&engine, prompt(30, seed), &limit(40), None).count(), 40);
        }
        // With the engine's thread held up, what is there can be counted; then the generation goes on.
        while_held(&engine, || {
            while let Poll::Ready(Some(fragment)) = slow.try_next() {
                first.push(fragment.unwrap().token.unwrap().id);
            }
        });
        assert!((run_ahead..=run_ahead + 1).contains(&first.len()), "{} fragments", first.len());
        first.extend(ids(&mut slow));
        assert_eq!(first, expected, "at most {run_ahead} ahead");
    }
    // One that is cancelled, or dropped, while it is paused.
    let mut paused = start(&engine, prompt(10, 0), &ahead(4), None);
    assert!(paused.next().unwrap().is_ok());
    assert_eq!(start(&engine, prompt(10, 1), &limit(9), None).count(), 9);
    paused.canceller().cancel();
    assert!(paused.by_ref().count() <= 4);
    assert_eq!(paused.finish_reason(), Some(FinishReason::Cancelled));
    let session = engine.open_session();
    drop(start(&engine, prompt(10, 0), &ahead(4), Some(session)));
    let again = loop {
        let stream = start(&engine, prompt(10, 0), &limit(3), Some(session));
        let fragments: Vec<_> = stream.collect();
        if fragments != [Err(EngineError::SessionBusy)] {
            break fragments;
        }
    };
    assert_eq!(ids(&mut again.into_iter()), expected[..3]);
}

#[test]
pub fn dropping_or_cancelling_a_stream_frees_its_place() {
    // Long enough that it is not over before it is cancelled.
    let engine = engine(16_384, 64, 1);
    let mut first = start(&engine, prompt(10, 0), &limit(16_000), None);
    assert!(first.next().unwrap().is_ok());
    let second = start(&engine, prompt(10, 1), &limit(3), None);
    drop(first);
    assert_eq!(second.count(), 3);

    let mut stream = start(&engine, prompt(10, 0), &limit(16_000), None);
    stream.next().unwrap().unwrap();
    stream.cancel();
    let rest = (&mut stream).count();
    assert!(rest < 15_999);
    assert_eq!(stream.finish_reason(), Some(FinishReason::Cancelled));
}

#[test]
pub fn a_deadline_ends_a_stream_with_an_error() {
    let engine = engine(512, 64, 1);
    let options = GenerateOptions {
        request: RequestOptions { deadline: Some(Instant::now()), ..RequestOptions::default() },
        ..limit(10)
    };
    let mut stream = start(&engine, prompt(10, 0), &options, None);
    assert_eq!(stream.next(), Some(Err(EngineError::DeadlineExceeded { tokens: 0 })));
    assert_eq!(stream.next(), None);
    let options = GenerateOptions {
        request: RequestOptions {
            deadline: Some(Instant::now() + Duration::from_hours(1)),
            ..RequestOptions::default()
        },
        ..limit(10)
    };
    assert_eq!(start(&engine, prompt(10, 0), &options, None).count(), 10);
}

#[test]
pub fn bad_requests_are_refused_at_once() {
    let engine = engine(64, 32, 1);
    let refuse = |prompt: Vec<u32>, options: GenerateOptions| {
        engine
            .generate(Request {
                prompt,
                options,
                end_ids: Vec::new(),
                decoder: Box::new(PlainIds),
                session: None,
            })
            .err()
            .unwrap()
    };
    assert_eq!(refuse(Vec::new(), limit(1)), EngineError::EmptyPrompt);
    assert_eq!(
        refuse(vec![VOCAB as u32], limit(1)),
        EngineError::UnknownToken { id: VOCAB as u32, vocab_size: VOCAB }
    );
    let empty_stop = GenerateOptions { stop_strings: vec![String::new()], ..limit(1) };
    assert!(matches!(refuse(vec![1], empty_stop), EngineError::Options(_)));
    assert_eq!(start(&engine, vec![1], &limit(0), None).count(), 0);
}

/// The text's thread is held up while the engine draws on. Text, figures and the session are those of a stop found at once.
#[test]
pub fn a_stop_string_found_late_leaves_nothing_behind_it() {
    // The window of a layer ends within the page that late tokens begin.
    let text = prompt(285, 2);
    let run = |stop: &str, late: bool| {
        let engine = engine(1024, 512, 2);
        let session = engine.open_session();
        let (hold, held) = std::sync::mpsc::channel();
        let options = GenerateOptions { stop_strings: vec![stop.into()], ..limit(200) };
        let mut stream = start_text(&engine, text.clone(), options, Held(held), Some(session));
        if late {
            // Each piece of work lets at least one step pass, and waits for no text.
            for _ in 0..100 {
                engine.with(|_| ()).unwrap();
            }
            assert!(stream.try_next().is_pending());
        }
        drop(hold);
        let fragments: Vec<Fragment> = (&mut stream).map(|fragment| fragment.unwrap()).collect();
        let figures = (stream.finish_reason(), stream.metrics().generated_tokens);
        let mut longer = text.clone();
        longer.extend(fragments.iter().filter_map(|fragment| fragment.token.as_ref()).map(|token| token.id));
        longer.extend(prompt(20, 5));
        let mut next = start(&engine, longer, &limit(9), Some(session));
        (fragments, figures, ids(&mut next), next.metrics().cached_tokens)
    };
    let (fragments, ..) = run("none", false);
    let whole: String = fragments.iter().map(|fragment| fragment.text.as_str()).collect();
    let stop = &whole[4..7];
    let at_once = run(stop, false);
    assert!(at_once.1 == (Some(FinishReason::Text(0)), at_once.0.len()) && at_once.0.len() <= 7);
    assert_eq!(at_once.3, 285 + at_once.0.len() - 1);
    assert_eq!(run(stop, true), at_once);
}

/// A deadline ends a request that pauses for its reader too.
#[test]
pub fn a_deadline_ends_a_reader_who_never_reads() {
    let engine = engine(1024, 64, 1);
    let request = RequestOptions {
        run_ahead: 1,
        deadline: Some(Instant::now() + Duration::from_millis(30)),
        ..RequestOptions::DEFAULT
    };
    let mut stream = start(&engine, prompt(20, 2), &GenerateOptions { request, ..limit(900) }, None);
    // Looking at the figures asks nothing of the engine's thread.
    let is_over = || engine.stats().requests == 1 && engine.stats().running + engine.stats().paused == 0;
    let ended = (0..10_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        is_over()
    });
    assert!(ended, "the request pauses for ever");
    let error = stream.find_map(Result::err);
    assert!(matches!(error, Some(EngineError::DeadlineExceeded { .. })), "{error:?}");
}

#[test]
pub fn a_stop_string_ends_the_work_for_a_reader_who_never_reads() {
    let engine = engine(1024, 64, 1);
    let session = engine.open_session();
    let letters = start_text(&engine, prompt(20, 2), limit(9), Letters, None).into_text().unwrap();
    let options = GenerateOptions {
        stop_strings: vec![letters[3..6].into()],
        request: RequestOptions { run_ahead: 6, ..RequestOptions::default() },
        ..limit(500)
    };
    let unread = start_text(&engine, prompt(20, 2), options, Letters, Some(session));
    // Paused for its reader, it would keep its session for ever.
    let ended = (0..100_000).any(|_| {
        let mut next = start(&engine, prompt(10, 0), &limit(1), Some(session));
        next.next() != Some(Err(EngineError::SessionBusy))
    });
    assert!(ended, "the session stays busy");
    assert_eq!(unread.into_text().unwrap(), letters[..3]);
}

#[test]
pub fn one_task_serves_many_streams() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let engine = engine(64, 64, 8);
    let expected: Vec<_> =
        (0..5).map(|seed| ids(&mut start(&engine, prompt(5, seed), &limit(4), None))).collect();
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut streams = Vec::new();
    // A tenth of them is dropped unread.
    for number in 0..90 {
        let stream = start(&engine, prompt(5, number % 5), &limit(4), None);
        if number % 10 > 0 {
            streams.push((number, Vec::new(), stream));
        }
    }
    while !streams.is_empty() {
        let before = streams.len();
        streams.retain_mut(|(number, found, stream)| {
            loop {
                match stream.poll_next(&mut context) {
                    Poll::Ready(Some(fragment)) => found.push(fragment.unwrap().token.unwrap().id),
                    Poll::Ready(None) => break,
                    Poll::Pending => return true,
                }
            }
            assert_eq!(*found, expected[*number % 5]);
            false
        });
        if streams.len() == before {
            std::thread::park_timeout(Duration::from_secs(10));
        }
    }
}

#[test]
pub fn a_decoder_that_fails_closes_the_engine() {
    struct Failing;
    impl TextDecoder for Failing {
        fn push(&mut self, _: u32) -> String {
            std::panic::resume_unwind(Box::new("a decoder fails"));
        }
        fn finish(&mut self) -> String {
            String::new()
        }
    }
    let engine = engine(1024, 64, 2);
    let beside = start(&engine, prompt(20, 2), &limit(900), None);
    let failing = start_text(&engine, prompt(20, 2), limit(900), Failing, None);
    for stream in [failing, beside, start(&engine, prompt(9, 1), &limit(3), None)] {
        assert_eq!(stream.last(), Some(Err(EngineError::Closed)));
    }
}

fn start_text(
    engine: &Engine,
    prompt: Vec<u32>,
    options: GenerateOptions,
    decoder: impl TextDecoder + 'static,
    session: Option<SessionId>,
) -> TokenStream {
    engine
        .generate(Request { prompt, options, end_ids: Vec::new(), decoder: Box::new(decoder), session })
        .unwrap()
}

/// Letters that come once the sender is gone.
struct Held(std::sync::mpsc::Receiver<()>);

impl TextDecoder for Held {
    fn push(&mut self, token: u32) -> String {
        let _ = self.0.recv();
        Letters.push(token)
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// One character per token.
struct Letters;

impl TextDecoder for Letters {
    fn push(&mut self, token: u32) -> String {
        char::from(b'A' + token as u8).to_string()
    }

    fn finish(&mut self) -> String {
        "~".into()
    }
}
