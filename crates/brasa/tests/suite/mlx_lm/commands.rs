//! Commands and replies: what is sent, and what is understood.

use std::ffi::OsString;

use brasa::engine::EngineError;
use brasa::sampling::SamplingOrder;
use brasa::{
    Backend, BackendError, ContextPolicy, Error, FinishReason, Fragment, GenerateOptions, LoadOptions,
    Message, Metrics, MlxLm, Model, SamplingParams,
};
use brasa_golden::folder;

use super::{child, fragment, fresh_file, model, read, start, try_load};

#[test]
fn every_command_is_sent_and_understood() {
    let file = fresh_file("quit");
    let script = r#"
        load
        expect '{"id":3,"command":"generate","max_tokens":5,"context":77,"temperature":0.5,"top_k":7,"top_p":0.25,"min_p":0.125,"seed":11,' \
            '"prompt":"In the beginning"}'
        say '{"id":3,"prompt_tokens":4}'
        say '{"id":3,"prefilled":4}'
        say '{"id":3,"token":"a","token_id":17}'
        say '{"id":3,"token":"","token_id":18}'
        say '{"id":3,"token":"b","token_id":null}'
        say '{"id":3,"done":"stop"}'
        expect '{"id":4,"command":"chat","max_tokens":null,' '"messages":[{"role":"user","content":"hi"}]'
        say '{"id":4,"prompt_tokens":6}'
        say '{"id":4,"token":"c","token_id":1}'
        say '{"id":4,"done":"length"}'
        expect '{"id":5,"command":"quit"}'
        say '{"id":5,"ok":true}'
        echo done > "$FILE"
    "#;
    let mut backend = child(script);
    let variable = OsString::from(format!("FILE={}", file.display()));
    backend.python = ["env".into(), variable].into_iter().chain(backend.python).collect();
    let options = LoadOptions { context: Some(77), ..LoadOptions::default() };
    let model = backend.load(&folder("tiny-qwen2"), &options).unwrap();
    assert_eq!(model.model_type(), "qwen2");
    assert!(model.as_native().is_none());
    // The files know better than the process.
    let native = Model::load(folder("tiny-qwen2"), &LoadOptions::default()).unwrap();
    assert_eq!(model.info(), native.info());
    assert_eq!(model.metrics(), Metrics::default());

    let sampling = SamplingParams {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.25,
        min_p: 0.125,
        seed: 11,
        order: SamplingOrder::MLX,
        ..SamplingParams::default()
    };
    let options = GenerateOptions { sampling, max_tokens: Some(5), ..GenerateOptions::default() };
    let mut stream = model.generate("In the beginning", &options).unwrap();
    let fragments: Vec<Fragment> = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!(fragments, [fragment("a", Some(17)), fragment("", Some(18)), fragment("b", None)]);
    assert_eq!(stream.finish_reason(), Some(FinishReason::End));
    assert_eq!((stream.metrics().prompt_tokens, stream.metrics().generated_tokens), (4, 2));
    assert_eq!(model.metrics(), *stream.metrics());

    let mut chat = model.chat(&[Message::new("user", "hi")], &GenerateOptions::default()).unwrap();
    assert_eq!(read(&mut *chat), ("c".into(), None));
    assert_eq!(chat.finish_reason(), Some(FinishReason::Length));
    assert_eq!((stream.metrics().prompt_tokens, model.metrics().prompt_tokens), (4, 6));

    model.close();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "done\n", "the child ended by itself");
    std::fs::remove_file(file).unwrap();
    model.close();
    let closed = |error: Option<Error>| matches!(error, Some(Error::Engine(EngineError::Closed)));
    assert!(closed(model.generate("x", &GenerateOptions::default()).err()));
}

#[test]
fn availability_is_what_python_says() {
    let available = |script| child(script).available().map_err(|error| error.reason);
    let found = available(
        r#"expect '"command":"probe"'; say '{"id":1,"ok":true,"python":"3.11.7","mlx_lm":"0.32.2"}'; expect quit"#,
    );
    assert_eq!(found, Ok("mlx-lm 0.32.2 on Python 3.11.7".into()));
    let missing = available(r#"expect probe; say '{"id":1,"error":"no module mlx_lm"}'; expect quit"#);
    assert_eq!(missing, Err("no module mlx_lm\nhint: pip install mlx-lm".into()));
    let broken = available("echo 'no such option' >&2; exit 2").unwrap_err();
    assert_eq!(
        broken,
        "mlx_lm: the process ended (exit status: 2); its standard error ends with:\nno such option"
    );
    let absent = MlxLm { python: vec!["brasa-has-no-such-program".into()], ..MlxLm::default() };
    let reason = absent.available().unwrap_err().reason;
    assert!(reason.starts_with("there is no program `brasa-has-no-such-program`\nhint: install Python"));
    assert!(matches!(try_load(&absent), Err(Error::Backend(BackendError::Unavailable(_)))));
    let nothing = MlxLm { python: Vec::new(), ..MlxLm::default() };
    assert!(nothing.available().unwrap_err().reason.contains("no Python program is named"));
}

#[test]
fn text_is_unicode_both_ways() {
    let model = model(
        r#"
        expect '"prompt":"Größe 火 🔥 \"q\" \\ \n'
        say '{"id":3,"token":"\ud83d\udd25 \u706b","token_id":1}'
        say '{"id":3,"token":"🔥 ß\n","token_id":2}'
        say '{"id":3,"done":"stop"}'
        "#,
    );
    let mut stream = model.generate("Größe 火 🔥 \"q\" \\ \n", &GenerateOptions::default()).unwrap();
    assert_eq!(read(&mut *stream), ("🔥 火🔥 ß\n".into(), None));
}

#[test]
fn a_request_may_be_larger_than_a_pipe() {
    let model = model(
        r#"
        sleep 0.2
        expect generate 'x"}'
        say '{"id":3,"token":"a","token_id":1}'
        say '{"id":3,"done":"stop"}'
        "#,
    );
    let mut stream = model.generate(&"x".repeat(300_000), &GenerateOptions::default()).unwrap();
    assert_eq!(read(&mut *stream), ("a".into(), None));
}

#[test]
fn the_context_is_kept() {
    let script = r#"
        expect '"context":5,'
        say '{"id":3,"prompt_tokens":4}'
        say '{"id":3,"token":"a","token_id":1}'
        say '{"id":3,"done":"context"}'
        expect '"context":5,'
        say '{"id":4,"prompt_tokens":4}'
        say '{"id":4,"done":"context"}'
        expect '"context":5,'
        say '{"id":5,"prompt_tokens":6}'
        say '{"id":5,"done":"context"}'
        expect '{"id":5,"command":"cancel"}'
        expect '"context":5,'
        say '{"id":6,"prompt_tokens":0}'
        say '{"id":6,"error":"ValueError: the prompt has no tokens"}'
        expect '{"id":6,"command":"cancel"}'
    "#;
    let options = LoadOptions { context: Some(5), ..LoadOptions::default() };
    let model = child(&format!("load\n{script}")).load(&folder("tiny-qwen2"), &options).unwrap();
    let fails = |expected: EngineError| {
        let error = start(&*model).find_map(Result::err);
        assert!(matches!(&error, Some(Error::Engine(error)) if *error == expected), "{error:?}");
    };
    fails(EngineError::ContextFull { context: 5 });
    let stop = GenerateOptions { context_policy: ContextPolicy::Stop, ..GenerateOptions::default() };
    let mut stream = model.generate("x", &stop).unwrap();
    assert_eq!(read(&mut *stream), (String::new(), None));
    assert_eq!(stream.finish_reason(), Some(FinishReason::ContextFull));
    drop(stream);
    fails(EngineError::PromptTooLong { tokens: 6, context: 5 });
    fails(EngineError::EmptyPrompt);
}
