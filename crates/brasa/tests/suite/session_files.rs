//! Files of sessions: a text goes on as if it had never been put down, and no other file is taken for one.

use std::io::Cursor;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use brasa::engine::EngineError;
use brasa::sampling::{Distribution, Dry, DryBreakers, Logprobs, SamplingOrder};
use brasa::{
    ContextPolicy, Error, GenerateOptions, KvType, LoadOptions, Model, Precision, RequestOptions,
    SamplingParams, Session, SessionFileError, TokenStream,
};
use brasa_fuzz::Fuzzer;
use brasa_golden::folder;
use sha2::{Digest, Sha256};

const LEXICON: &str = "lexicon-qwen3/lexicon-qwen3-Q6_K.gguf";
/// Names the file that the child of the killing test saves.
const CHILD: &str = "BRASA_TEST_SAVES_TO";

fn options() -> LoadOptions {
    let context = Some(1024);
    LoadOptions { context, threads: Some(1), deterministic: true, ..LoadOptions::default() }
}

fn model(name: &str, options: &LoadOptions) -> Model {
    Model::load(folder(name), options).unwrap()
}

fn prompt(length: usize, seed: usize) -> Vec<u32> {
    (0..length).map(|index| (300 + (index * index * 7 + index * 31 + seed * 101) % 3000) as u32).collect()
}

fn drawn(tokens: usize) -> GenerateOptions {
    let sampling = SamplingParams {
        temperature: 0.9,
        repeat_penalty: 1.1,
        seed: 5,
        logprobs: Some(Logprobs { top: 0, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    GenerateOptions { sampling, max_tokens: Some(tokens), ignore_eos: true, ..GenerateOptions::default() }
}

/// Ids of a stream and the bits of their log-probabilities; and the prompt tokens that were cached.
fn said(mut stream: TokenStream) -> (Vec<u32>, Vec<u32>, usize) {
    let tokens: Vec<_> = stream.by_ref().filter_map(|fragment| fragment.unwrap().token).collect();
    let bits = tokens.iter().map(|token| token.logprob.unwrap().to_bits()).collect();
    (tokens.iter().map(|token| token.id).collect(), bits, stream.metrics().cached_tokens)
}

fn bytes_of(session: &Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.write_to(&mut bytes, |_| ControlFlow::Continue(())).unwrap();
    bytes
}

fn read(model: &Model, bytes: &[u8]) -> Result<Session, Error> {
    model.read_session(&mut Cursor::new(bytes), |_| ControlFlow::Continue(()))
}

#[test]
fn a_loaded_session_goes_on_as_if_it_had_never_been_saved() {
    let reference = LoadOptions { precision: Precision::Reference, ..options() };
    let typed = |kv_type| LoadOptions { kv_type: Some(kv_type), ..options() };
    let ways = [
        (LEXICON, typed(KvType::F16)),
        (LEXICON, typed(KvType::Q8)),
        ("tiny-gemma3", typed(KvType::BF16)),
        ("tiny-gemma4", reference),
    ];
    for (number, (name, options)) in ways.into_iter().enumerate() {
        let (here, there) = (model(name, &options), model(name, &options));
        let session = here.session();
        let mut text = prompt(270, number);
        text.extend(said(session.generate_ids(text.clone(), &drawn(30)).unwrap()).0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{number}.session"));
        let mut seen = Vec::new();
        let saved = session
            .save_with_progress(&path, |progress| {
                seen.push(progress);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((saved.tokens, saved.bytes), (299, fs::metadata(&path).unwrap().len()));
        let last = seen.last().unwrap();
        assert_eq!((last.done_bytes, last.total_bytes), (saved.bytes, saved.bytes));

        let loaded = there.load_session(&path).unwrap();
        assert_eq!(loaded.tokens().unwrap(), text[..299]);
        assert_eq!(bytes_of(&loaded), fs::read(&path).unwrap(), "{name}: saved again");
        text.extend(prompt(9, 77));
        let went_on = said(session.generate_ids(text.clone(), &drawn(40)).unwrap());
        let resumed = said(loaded.generate_ids(text.clone(), &drawn(40)).unwrap());
        assert_eq!(went_on.2, 299, "{name}");
        assert_eq!(resumed, went_on, "{name}");
        let fresh = said(there.generate_ids(text, &drawn(40)).unwrap());
        assert_eq!((resumed.0, resumed.1), (fresh.0, fresh.1), "{name}");
    }
}

#[test]
fn settings_come_back() {
    let model = model(LEXICON, &options());
    let settings = GenerateOptions {
        sampling: SamplingParams {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 0.75,
            top_n_sigma: 2.5,
            xtc_probability: 0.5,
            xtc_threshold: 0.125,
            dynatemp_range: 0.25,
            dynatemp_exponent: 2.0,
            dry: Dry {
                multiplier: 0.5,
                last_n: None,
                breakers: DryBreakers::new([&[3][..], &[4, 5]]),
                ..Dry::default()
            },
            repeat_penalty: 1.1,
            frequency_penalty: 0.25,
            presence_penalty: -0.1,
            repeat_last_n: Some(64),
            logit_bias: vec![(5, f32::NEG_INFINITY), (7, 1.5)],
            suppressed: vec![9, 11],
            min_tokens: 2,
            seed: u64::MAX - 3,
            order: SamplingOrder::LLAMA_CPP,
            logprobs: Some(Logprobs { top: 3, of: Distribution::Final }),
            entropy: true,
        },
        max_tokens: Some(3),
        stop_ids: vec![17],
        stop_strings: vec!["\n\"stop\"".into()],
        ignore_eos: true,
        context_policy: ContextPolicy::Slide { keep: 12 },
        ..GenerateOptions::default()
    };
    let mut session = model.session();
    assert!(session.options().is_none());
    assert!(read(&model, &bytes_of(&session)).unwrap().options().is_none());
    session.generate_ids(prompt(20, 0), &settings).unwrap().for_each(drop);
    let loaded = read(&model, &bytes_of(&session)).unwrap().options().unwrap();
    assert_eq!(loaded.sampling, settings.sampling);
    assert_eq!(format!("{loaded:?}"), format!("{settings:?}"));
    session.reset();
    assert!(session.options().is_none() && session.tokens().unwrap().is_empty());
}

#[test]
fn a_session_is_warmed_and_rolled_back() {
    let model = model(LEXICON, &LoadOptions { prefix_bytes: Some(0), ..options() });
    let session = model.session();
    let text = prompt(300, 1);
    assert_eq!(session.warm_prompt(text.clone(), &RequestOptions::DEFAULT).unwrap().cached_tokens, 0);
    assert_eq!(session.tokens().unwrap(), text);
    let fresh = said(model.generate_ids([&text[..], &[5]].concat(), &drawn(5)).unwrap());
    let warm = said(session.generate_ids([&text[..], &[5]].concat(), &drawn(5)).unwrap());
    assert_eq!((fresh.2, warm.2), (0, 300));
    assert_eq!((warm.0, warm.1), (fresh.0, fresh.1));
    let pages = || model.engine().stats().pages_used;
    let before = pages();
    assert_eq!(session.rollback(100).unwrap(), 100);
    assert_eq!(session.tokens().unwrap(), text[..100]);
    assert!(pages() < before);
}

#[test]
fn a_file_of_another_model_is_refused_by_what_differs() {
    let lexicon = model(LEXICON, &options());
    let session = lexicon.session();
    session.generate_ids(prompt(40, 0), &drawn(3)).unwrap().for_each(drop);
    let file = bytes_of(&session);
    let differs = |model: &Model| match read(model, &file) {
        Err(Error::SessionFile { error: SessionFileError::Differs { what, .. }, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(differs(&model("tiny-gemma3", &options())), "architecture");
    assert_eq!(differs(&model("tiny-qwen3moe", &options())), "architecture");
    let q8 = LoadOptions { kv_type: Some(KvType::Q8), ..options() };
    assert_eq!(differs(&model(LEXICON, &q8)), "type of keys and values");
    let reference = LoadOptions { precision: Precision::Reference, kv_type: Some(KvType::F16), ..options() };
    assert_eq!(differs(&model(LEXICON, &reference)), "arithmetic");
    assert_eq!(differs(&model(LEXICON, &LoadOptions { deterministic: false, ..options() })), "arithmetic");

    let gguf = fs::read(folder(LEXICON)).unwrap();
    let from =
        |bytes: Vec<u8>| Model::from_gguf_bytes(bytes, &options(), |_| ControlFlow::Continue(())).unwrap();
    let mut weights = gguf.clone();
    let end = weights.len();
    weights[end - 64..].iter_mut().for_each(|byte| *byte ^= 1);
    assert_eq!(differs(&from(weights)), "weights");
    let mut tokens = gguf.clone();
    let word = b"ember";
    let at = tokens.windows(word.len()).position(|window| window == word).unwrap();
    tokens[at..at + word.len()].copy_from_slice(b"embar");
    assert_eq!(differs(&from(tokens)), "tokenizer");
    read(&from(gguf), &file).unwrap();

    let small = model(LEXICON, &LoadOptions { context: Some(30), ..options() });
    let error = read(&small, &file).unwrap_err();
    assert!(
        matches!(error, Error::Engine(EngineError::PromptTooLong { tokens: 42, context: 30 })),
        "{error}"
    );
}

#[test]
fn a_damaged_file_is_refused_and_leaves_nothing_behind() {
    let model = model(LEXICON, &options());
    let session = model.session();
    session.generate_ids(prompt(300, 0), &drawn(3)).unwrap().for_each(drop);
    let file = bytes_of(&session);
    let used = || model.engine().stats().pages_used;
    let before = used();
    let refused = |bytes: &[u8]| match read(&model, bytes) {
        Err(Error::SessionFile { error, .. }) => error,
        other => panic!("{other:?}"),
    };
    for cut in [0, 7, 15, 16, 300, file.len() / 2, file.len() - 40, file.len() - 1] {
        assert!(matches!(refused(&file[..cut]), SessionFileError::CutOff { .. }), "{cut}");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = file.clone();
        bytes[at] ^= byte;
        refused(&bytes)
    };
    assert!(matches!(with(0, 1), SessionFileError::NotASession));
    assert!(matches!(with(8, 2), SessionFileError::Version { found: 3, expected: 1 }));
    assert!(matches!(with(15, 0x80), SessionFileError::Malformed { .. }));
    let header = u32::from_le_bytes(file[12..16].try_into().unwrap()) as usize;
    assert!(matches!(with(16 + header + 5, 1), SessionFileError::Checksum { part: "header and tokens" }));
    for at in [16 + header + 302 * 4 + 32, file.len() / 2, file.len() - 33, file.len() - 1] {
        assert!(matches!(with(at, 1), SessionFileError::Checksum { part: "a page" }), "{at}");
    }
    assert!(matches!(refused(&[&file[..], &[0]].concat()), SessionFileError::Malformed { .. }));
    let stopped = model.read_session(&mut Cursor::new(&file), |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Device(_))));
    // Work runs behind the commands that give the pages back, and the figures are published behind it.
    read(&model, &file).map(drop).unwrap();
    model.engine().with(|_| ()).unwrap();
    assert_eq!(session.tokens().unwrap().len(), 302);
    model.generate_ids(prompt(2, 0), &drawn(1)).unwrap().for_each(drop);
    assert!(used() <= before + 4, "{} pages, {before} before", used());
}

/// Hostile files end in an error or a session, however well their checksums fit.
#[test]
fn hostile_files_are_refused() {
    let model = model(LEXICON, &options());
    let session = model.session();
    session.generate_ids(prompt(12, 0), &drawn(2)).unwrap().for_each(drop);
    let file = bytes_of(&session);
    let header = u32::from_le_bytes(file[12..16].try_into().unwrap()) as usize;
    let outcome = |bytes: &[u8]| match read(&model, bytes) {
        Ok(session) => format!("a session of {} tokens", session.tokens().unwrap().len()),
        Err(error) => error.to_string(),
    };
    // Headers that are mutated and sealed anew reach the checks behind the seal; tokens and pages follow them.
    let (tokens, pages) = (16 + header..16 + header + 13 * 4, 16 + header + 13 * 4 + 32);
    let sealed = |header: &[u8]| {
        let length = (header.len() as u32).to_le_bytes();
        let front = [&file[..12], &length, header, &file[tokens.clone()]].concat();
        let seal = Sha256::digest(&front);
        [&front[..], &seal, &file[pages..]].concat()
    };
    assert_eq!(outcome(&sealed(&file[16..16 + header])), "a session of 13 tokens");
    let words =
        ["tokens", "pages", "null", "-1", "18446744073709551615", "1e400", "[[0,1]]", "[]", "[", "true"];
    let report = Fuzzer::new("session-sealed")
        .seed(&file[16..16 + header])
        .words(words)
        .runs(250)
        .run(|bytes| outcome(&sealed(bytes)));
    assert!(report.outcomes > 10, "{report:?}");
    Fuzzer::new("session").seed(&file[..16 + header + 13 * 4]).words(words).runs(100).run(outcome);
    assert_eq!(outcome(&file), "a session of 13 tokens");
}

/// Saves one session over and over, until it is killed: the child of the test below.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = env::var_os(CHILD) else { return };
    let model = model(LEXICON, &options());
    let sessions = [20, 290].map(|length| {
        let session = model.session();
        session.generate_ids(prompt(length, 0), &drawn(2)).unwrap().for_each(drop);
        session
    });
    loop {
        for session in &sessions {
            session.save(&path).unwrap();
        }
    }
}

/// A process that is killed while it saves leaves the file before or the file after, whole.
#[test]
fn a_killed_process_leaves_a_whole_file() {
    let model = model(LEXICON, &options());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("killed.session");
    let mut lengths = Vec::new();
    for delay_ms in [3, 31] {
        let _ = fs::remove_file(&path);
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "session_files::saves_until_it_is_killed"])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !path.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..4 {
            lengths.push(model.load_session(&path).unwrap().tokens().unwrap().len());
        }
        thread::sleep(Duration::from_millis(delay_ms));
        // SIGKILL on Unix.
        child.kill().unwrap();
        child.wait().unwrap();
        lengths.push(model.load_session(&path).unwrap().tokens().unwrap().len());
        // What the killed process left half done is gone with the next file of that name.
        model.session().save(&path).unwrap();
        let folder = fs::read_dir(path.parent().unwrap()).unwrap();
        let partial = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains("killed.session.");
        assert_eq!(folder.flatten().filter(partial).count(), 0);
    }
    assert!(lengths.iter().all(|length| [21, 291].contains(length)), "{lengths:?}");
}
