//! The `mlx_lm` backend against children that are shell scripts, and its Python script against a stand-in for the package.

mod script;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use brasa::engine::EngineError;
use brasa::sampling::{Distribution, Logprobs, SamplingOrder};
use brasa::{
    Backend, BackendError, ClassifyOptions, ContextPolicy, Error, FinishReason, Fragment, GenerateOptions,
    Grammar, KvType, LoadOptions, Message, Metrics, MlxLm, Model, Precision, RequestOptions, SamplingParams,
    Speculation, TextModel, TextStream, Token,
};
use brasa_golden::folder;

/// Beginning of every scripted child: `expect TEXT...` reads a request that has these texts in it, `say LINE` replies, `load` plays
/// the loading of a model, requests 1 and 2. The child is called with `-c SCRIPT`, which it passes over.
const PRELUDE: &str = r#"
say() { printf '%s\n' "$1"; }
expect() {
    IFS= read -r line
    for text; do
        case "$line" in *"$text"*) ;; *) echo "expected $text, found $line" >&2; exit 9 ;; esac
    done
}
load() {
    expect '"id":1,"command":"load","path":"/'
    say '{"id":1,"ok":true,"model_type":"qwen2","vocab_size":1}'
    expect '"id":2,"command":"info"'
    say '{"id":2,"ok":true,"model_type":"qwen2","vocab_size":1,"layers":2,"hidden_size":3}'
}
"#;

fn child(script: &str) -> MlxLm {
    let python = ["sh", "-c", &format!("{PRELUDE}{script}")].map(OsString::from).to_vec();
    MlxLm { python, ..MlxLm::default() }
}

fn try_load(backend: &MlxLm) -> Result<Box<dyn TextModel>, Error> {
    backend.load(&folder("tiny-qwen2"), &LoadOptions::default())
}

/// A model whose child behaves as `script` says once it is loaded.
fn model(script: &str) -> Box<dyn TextModel> {
    try_load(&child(&format!("load\n{script}"))).unwrap()
}

fn start(model: &dyn TextModel) -> Box<dyn TextStream> {
    model.generate("x", &GenerateOptions::default()).unwrap()
}

/// The whole of a stream: its text, and the error that ended it.
fn read(stream: &mut dyn TextStream) -> (String, Option<BackendError>) {
    let mut text = String::new();
    for fragment in stream {
        match fragment {
            Ok(fragment) => text += &fragment.text,
            Err(Error::Backend(error)) => return (text, Some(error)),
            Err(error) => panic!("{error}"),
        }
    }
    (text, None)
}

fn failed(message: &str) -> BackendError {
    BackendError::Failed { backend: "mlx_lm", message: message.into() }
}

fn fragment(text: &str, id: Option<u32>) -> Fragment {
    let token = id.map(|id| Token { id, ..Token::default() });
    Fragment { text: text.into(), token }
}

/// A file of its own that no test has made.
fn fresh_file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("brasa-mlx-lm-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

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
fn a_child_that_dies_leaves_its_last_words() {
    let died = |status: &str, stderr: &str| BackendError::Died {
        backend: "mlx_lm",
        status: status.into(),
        stderr: stderr.into(),
    };
    let after_a_token = |script: &str| {
        let model =
            model(&format!("expect generate; say '{{\"id\":3,\"token\":\"a\",\"token_id\":1}}'; {script}"));
        let (text, error) = read(&mut *start(&*model));
        assert_eq!(text, "a");
        // The model is lost, and says why.
        let again = model.generate("x", &GenerateOptions::default()).err();
        assert!(matches!(again, Some(Error::Backend(again)) if Some(&again) == error.as_ref()));
        error.unwrap()
    };
    let noise = "echo out of memory >&2; echo für alle >&2; exit 3";
    assert_eq!(after_a_token(noise), died("exit status: 3", "out of memory\nfür alle"));
    assert_eq!(after_a_token("kill -9 $$"), died("signal: 9 (SIGKILL)", ""));
    // Within a line.
    assert_eq!(after_a_token("printf '{\"id\":3,'; exit 0"), died("exit status: 0", ""));
    let closed = after_a_token("exec >&-; exec sleep 60");
    assert_eq!(closed, died("it closed its standard output, and was killed", ""));
    // Of very many words the last lines are kept, whole.
    let many = after_a_token("i=0; while [ $i -lt 2000 ]; do echo \"line $i\" >&2; i=$((i+1)); done; exit 1");
    let BackendError::Died { stderr, .. } = many else { panic!("{many}") };
    assert!(stderr.ends_with("line 1998\nline 1999") && (1500..=2048).contains(&stderr.len()), "{stderr}");
    assert!(stderr.lines().all(|line| line.len() == "line 1999".len()), "{stderr}");

    let at_load = try_load(&child("expect load; echo 'Segmentation fault' >&2; exit 139")).err().unwrap();
    assert!(
        matches!(&at_load, Error::Backend(error) if *error == died("exit status: 139", "Segmentation fault")),
        "{at_load}"
    );
    let refused =
        try_load(&child("expect load; say '{\"id\":1,\"error\":\"ValueError: no type\"}'; expect x"));
    assert_eq!(refused.err().unwrap().to_string(), "mlx_lm: ValueError: no type");
}

#[test]
fn lines_that_are_no_reply_end_the_child() {
    let wrote = |line: &str| {
        let model = model(&format!("expect generate; {line}; exec sleep 60"));
        match read(&mut *start(&*model)).1 {
            Some(BackendError::Protocol { what, .. }) => what,
            other => panic!("{line}: {other:?}"),
        }
    };
    for (line, what) in [
        ("say 'Downloading: 3 %'", "a line that is no reply: `Downloading: 3 %`"),
        ("say ''", "a line that is no reply: ``"),
        ("say '[1]'", "a line that is no reply: `[1]`"),
        (r#"say '{"ok":true}'"#, r#"a line that is no reply: `{\"ok\":true}`"#),
        (r#"say '{"id":3}'"#, r#"a line that is no reply: `{\"id\":3}`"#),
        (r#"say '{"id":-1,"ok":true}'"#, r#"a line that is no reply: `{\"id\":-1,\"ok\":true}`"#),
        (r#"say '{"id":3,"token":7,"token_id":1}'"#, "a line that is no reply: `{"),
        (r#"say '{"id":3,"token":"a"}'"#, "a line that is no reply: `{"),
        (r#"say '{"id":3,"done":"tired"}'"#, "a line that is no reply: `{"),
        (r#"say '{"id":3,"token":"\ud83d","token_id":1}'"#, "a line that is no reply: `{"),
        (r"printf '\377\376\n'", "a line that is no reply: `\u{fffd}\u{fffd}`"),
        (r"printf '\033[31mred\n'", r"a line that is no reply: `\u{1b}[31mred`"),
        (r#"say '{"id":4,"done":"stop"}'"#, "a reply to request 4, not to 3: End(Stop)"),
        (r#"say '{"id":null,"error":"no JSON"}'"#, r#"a reply to no request, not to 3: Failed("no JSON")"#),
        (r#"say '{"id":3,"ok":true}'"#, r#"{"ok": Bool(true)} within a text"#),
    ] {
        let found = wrote(line);
        assert!(found.starts_with(what), "{line}: {found}");
    }
    let long = wrote("head -c 500 /dev/zero | tr '\\0' x; echo");
    assert_eq!(long, format!("a line that is no reply: `{}` …", "x".repeat(120)));
}

#[test]
fn lines_are_long_and_not_endless() {
    let model = model(
        r#"
        expect generate
        printf '{"id":3,"token":"'
        head -c 1000000 /dev/zero | tr '\0' x
        printf '","token_id":1}\n'
        say '{"id":3,"done":"stop"}'
        expect generate
        exec tr '\0' x < /dev/zero
        "#,
    );
    let (text, error) = read(&mut *start(&*model));
    assert_eq!((text.len(), error), (1_000_000, None));
    let what = "a line of more than 1048576 bytes".to_owned();
    let endless = Some(BackendError::Protocol { backend: "mlx_lm", what });
    assert_eq!(read(&mut *start(&*model)), (String::new(), endless));
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
fn silence_has_a_limit() {
    let limit = Duration::from_millis(1500);
    let late =
        |command| BackendError::TimedOut { backend: "mlx_lm", command, limit, stderr: "thinking".into() };
    let patient = |script: &str| MlxLm { silence_limit: limit, ..child(&format!("load\n{script}")) };
    let script = r#"
        expect generate
        for i in 1 2 3 4; do sleep 0.5; say '{"id":3,"prefilled":1}'; done
        say '{"id":3,"token":"a","token_id":1}'
        echo thinking >&2
        exec sleep 60
    "#;
    let model = try_load(&patient(script)).unwrap();
    let begun = Instant::now();
    // Signs of life put the end off.
    assert_eq!(read(&mut *start(&*model)), ("a".into(), Some(late("generate"))));
    assert!(begun.elapsed() < Duration::from_secs(30), "the child was waited for");
    assert!(matches!(
        model.generate("x", &GenerateOptions::default()).err(),
        Some(Error::Backend(error)) if error == late("generate")
    ));

    let slow = MlxLm { load_limit: limit, ..child("echo thinking >&2; exec sleep 60") };
    let error = try_load(&slow).err();
    assert!(matches!(error, Some(Error::Backend(error)) if error == late("load")));
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

#[test]
fn options_that_are_not_honoured_are_refused_by_name() {
    let model = model("expect nothing");
    let refused = |options: &GenerateOptions| match model.generate("x", options).err() {
        Some(Error::Backend(BackendError::Unsupported { backend: "mlx_lm", what, .. })) => what,
        other => panic!("{options:?}: {other:?}"),
    };
    let native = Model::load(folder("tiny-qwen2"), &LoadOptions::default()).unwrap();
    let mask = native.grammar(&Grammar::Lark("start: \"a\"".into())).unwrap();
    let plain = GenerateOptions::default;
    for (name, options) in [
        ("stop_ids", GenerateOptions { stop_ids: vec![1], ..plain() }),
        ("stop_strings", GenerateOptions { stop_strings: vec!["a".into()], ..plain() }),
        ("ignore_eos", GenerateOptions { ignore_eos: true, ..plain() }),
        (
            "the context policy `slide`",
            GenerateOptions { context_policy: ContextPolicy::Slide { keep: 1 }, ..plain() },
        ),
        ("mask: grammars and schemas", GenerateOptions { mask: Some(mask), ..plain() }),
        ("speculation", GenerateOptions { speculation: Some(Speculation::LOOKUP), ..plain() }),
    ] {
        assert_eq!(refused(&options), name);
    }
    let sampling = |change: &dyn Fn(&mut SamplingParams)| {
        let mut options = plain();
        change(&mut options.sampling);
        refused(&options)
    };
    assert_eq!(sampling(&|params| params.typical_p = 0.9), "typical_p");
    assert_eq!(sampling(&|params| params.top_n_sigma = 1.0), "top_n_sigma");
    assert_eq!(sampling(&|params| params.xtc_probability = 0.5), "xtc_probability");
    assert_eq!(sampling(&|params| params.dynatemp_range = 0.5), "dynatemp_range");
    assert_eq!(sampling(&|params| params.dry.multiplier = 0.5), "dry");
    assert_eq!(sampling(&|params| params.repeat_penalty = 1.1), "repeat_penalty");
    assert_eq!(sampling(&|params| params.frequency_penalty = 0.1), "frequency_penalty");
    assert_eq!(sampling(&|params| params.presence_penalty = -0.1), "presence_penalty");
    assert_eq!(sampling(&|params| params.logit_bias = vec![(1, 1.0)]), "logit_bias");
    assert_eq!(sampling(&|params| params.suppressed = vec![1]), "suppressed");
    assert_eq!(sampling(&|params| params.min_tokens = 1), "min_tokens");
    let logprobs = Logprobs { top: 0, of: Distribution::Raw };
    assert_eq!(sampling(&|params| params.logprobs = Some(logprobs)), "logprobs");
    let warm = SamplingParams { temperature: 0.7, ..SamplingParams::default() };
    for filtered in [
        SamplingParams { top_k: 3, ..warm.clone() },
        SamplingParams { top_p: 0.5, ..warm.clone() },
        SamplingParams { min_p: 0.5, ..warm },
    ] {
        let order = sampling(&|params| *params = filtered.clone());
        assert_eq!(
            order,
            "the sampling order penalties;dry;temperature;top_n_sigma;top_p;top_k;typ_p;min_p;xtc"
        );
    }

    let loading = |options: LoadOptions| match child("load").load(&folder("tiny-qwen2"), &options).err() {
        Some(Error::Backend(BackendError::Unsupported { backend: "mlx_lm", what, .. })) => what,
        other => panic!("{options:?}: {other:?}"),
    };
    let plain = LoadOptions::default;
    for (name, options) in [
        ("threads", LoadOptions { threads: Some(1), ..plain() }),
        ("isa", LoadOptions { isa: Some("avx2".into()), ..plain() }),
        ("precision `reference`", LoadOptions { precision: Precision::Reference, ..plain() }),
        ("deterministic", LoadOptions { deterministic: true, ..plain() }),
        ("kv_type", LoadOptions { kv_type: Some(KvType::F16), ..plain() }),
        ("chunk", LoadOptions { chunk: Some(1), ..plain() }),
        ("mixed_chunk", LoadOptions { mixed_chunk: Some(1), ..plain() }),
        ("cache_bytes", LoadOptions { cache_bytes: Some(1), ..plain() }),
        ("prefix_bytes", LoadOptions { prefix_bytes: Some(1), ..plain() }),
        ("speculation", LoadOptions { speculation: Speculation::LOOKUP, ..plain() }),
        ("strict", LoadOptions { strict: true, ..plain() }),
        ("pre_tokenizer", LoadOptions { pre_tokenizer: Some("qwen2".into()), ..plain() }),
        ("chat_template", LoadOptions { chat_template: Some(String::new()), ..plain() }),
    ] {
        assert_eq!(loading(options), name);
    }
}

#[test]
fn what_only_native_backends_do_points_at_them() {
    let model = model("expect nothing");
    let classify = model.classify(&["x"], &ClassifyOptions::default()).err().unwrap().to_string();
    let native = "hint: load the model with a native backend: `cpu` or `cuda`";
    assert_eq!(classify, format!("mlx_lm does not support classify\n{native}"));
    let batch = model.batch_generate(&["x"], &GenerateOptions::default()).err().unwrap().to_string();
    assert_eq!(batch, format!("mlx_lm does not support batch_generate\n{native}"));
    let senseless = GenerateOptions {
        request: RequestOptions { run_ahead: 0, ..RequestOptions::DEFAULT },
        ..GenerateOptions::default()
    };
    assert!(matches!(model.generate("x", &senseless).err(), Some(Error::Engine(EngineError::Options(_)))));

    let backend = child("expect nothing");
    let load = |path: &Path| backend.load(path, &LoadOptions::default()).err().unwrap();
    let gguf = folder("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    assert!(load(&gguf).to_string().contains("it is no folder"));
    assert!(matches!(load(Path::new("no/such/folder")), Error::File { .. }));
    let none = LoadOptions { context: Some(0), ..LoadOptions::default() };
    let refused = backend.load(&folder("tiny-qwen2"), &none).err().unwrap();
    assert_eq!(refused.to_string(), "the context must be at least 1");
}
