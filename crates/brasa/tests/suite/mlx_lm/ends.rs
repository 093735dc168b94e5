//! Ends of streams: cancelled, dropped, failed, late, closed.

use std::ffi::OsString;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use brasa::engine::EngineError;
use brasa::{BackendError, Error, FinishReason, GenerateOptions, Message, RequestOptions, TextStream};

use super::{child, failed, fresh_file, model, read, start, try_load};

#[test]
fn a_cancelled_stream_ends_with_what_it_has() {
    let model = model(
        r#"
        expect generate
        say '{"id":3,"prompt_tokens":1}'
        say '{"id":3,"token":"a","token_id":1}'
        expect '{"id":3,"command":"cancel"}'
        say '{"id":3,"token":"b","token_id":2}'
        say '{"id":3,"done":"cancelled"}'
        expect '"id":4,"command":"generate"'
        say '{"id":4,"token":"c","token_id":3}'
        say '{"id":4,"done":"stop"}'
        "#,
    );
    let mut stream = start(&*model);
    assert_eq!(stream.next().unwrap().unwrap().text, "a");
    std::thread::spawn(stream.canceller()).join().unwrap();
    assert_eq!(read(&mut *stream), ("b".into(), None));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Cancelled));
    // An ended stream has nothing to cancel.
    stream.cancel();
    drop(stream);
    assert_eq!(read(&mut *start(&*model)), ("c".into(), None));
}

/// More lines than wait anywhere: the child stands still until the next stream skips them.
#[test]
fn a_dropped_stream_is_cancelled_and_makes_room() {
    let model = model(
        r#"
        expect generate
        say '{"id":3,"token":"a","token_id":1}'
        i=0
        while [ $i -lt 3000 ]; do say '{"id":3,"token":"stale and long enough to fill a pipe","token_id":1}'; i=$((i+1)); done
        expect '{"id":3,"command":"cancel"}'
        say '{"id":3,"done":"cancelled"}'
        expect '"id":4,"command":"generate"'
        say '{"id":4,"token":"c","token_id":3}'
        say '{"id":4,"done":"stop"}'
        "#,
    );
    let mut stream = start(&*model);
    assert_eq!(stream.next().unwrap().unwrap().text, "a");
    let busy = model.generate("x", &GenerateOptions::default()).err().unwrap();
    assert!(matches!(busy, Error::Backend(BackendError::Busy { .. })), "{busy}");
    assert_eq!(stream.finish_reason(), None);
    drop(stream);
    assert_eq!(read(&mut *start(&*model)), ("c".into(), None));
}

#[test]
fn an_error_within_a_text_ends_the_text_alone() {
    let model = model(
        r#"
        expect generate
        say '{"id":3,"token":"a","token_id":1}'
        say '{"id":3,"error":"ValueError: no"}'
        expect generate
        say '{"id":4,"token":"b","token_id":1}'
        say '{"id":4,"done":"stop"}'
        "#,
    );
    let mut stream = start(&*model);
    assert_eq!(read(&mut *stream), ("a".into(), Some(failed("ValueError: no"))));
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), None);
    assert_eq!(read(&mut *start(&*model)), ("b".into(), None));
}

#[test]
fn a_deadline_cancels() {
    let model = model(
        r#"
        expect generate
        say '{"id":3,"token":"a","token_id":1}'
        expect '{"id":3,"command":"cancel"}'
        say '{"id":3,"done":"cancelled"}'
        expect '"id":4'
        expect '{"id":4,"command":"cancel"}'
        expect '"id":5'
        say '{"id":5,"done":"stop"}'
        "#,
    );
    let until = |deadline| GenerateOptions {
        request: RequestOptions { deadline: Some(deadline), ..RequestOptions::DEFAULT },
        ..GenerateOptions::default()
    };
    let expect_late = |mut stream: Box<dyn TextStream>, text: &str, count| {
        let mut found = String::new();
        let error = stream.find_map(|fragment| match fragment {
            Ok(fragment) => {
                found += &fragment.text;
                None
            }
            Err(error) => Some(error),
        });
        assert_eq!(found, text);
        let late = EngineError::DeadlineExceeded { tokens: count };
        assert!(matches!(error, Some(Error::Engine(error)) if error == late));
    };
    let soon = Instant::now() + Duration::from_secs(2);
    expect_late(model.generate("x", &until(soon)).unwrap(), "a", 1);
    expect_late(model.generate("x", &until(Instant::now())).unwrap(), "", 0);
    assert_eq!(read(&mut *start(&*model)), (String::new(), None));
}

#[test]
fn closing_ends_a_stream_that_waits() {
    let model = model(
        r#"
        expect generate
        say '{"id":3,"token":"a","token_id":1}'
        exec sleep 60
        "#,
    );
    let mut stream = start(&*model);
    let (begun, has_begun) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        stream.next().unwrap().unwrap();
        begun.send(()).unwrap();
        let error = stream.next();
        assert!(stream.next().is_none());
        error
    });
    has_begun.recv().unwrap();
    let before = Instant::now();
    model.close();
    let error = reader.join().unwrap();
    assert!(matches!(error, Some(Err(Error::Engine(EngineError::Closed)))));
    assert!(before.elapsed() < Duration::from_secs(30), "the child was waited for");
    let later = model.chat(&[Message::new("user", "x")], &GenerateOptions::default());
    assert!(matches!(later.err(), Some(Error::Engine(EngineError::Closed))));
}

#[test]
fn a_dropped_model_ends_its_child() {
    let file = fresh_file("pid");
    let mut backend = child("load\necho $$ > \"$FILE\"; exec sleep 60");
    let variable = OsString::from(format!("FILE={}", file.display()));
    backend.python = ["env".into(), variable].into_iter().chain(backend.python).collect();
    let model = try_load(&backend).unwrap();
    let pid = loop {
        match std::fs::read_to_string(&file).ok().filter(|pid| pid.ends_with('\n')) {
            Some(pid) => break pid.trim().to_owned(),
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let runs = || Command::new("kill").args(["-0", &pid]).output().unwrap().status.success();
    assert!(runs());
    drop(model);
    assert!(!runs());
    std::fs::remove_file(file).unwrap();
}
