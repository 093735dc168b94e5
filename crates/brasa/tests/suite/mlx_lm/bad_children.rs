//! Children that die, fall silent or write lines that are no reply.

use std::time::{Duration, Instant};

use brasa::{BackendError, Error, GenerateOptions, MlxLm};

use super::{child, model, read, start, try_load};

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
