//! Slots that are kept in files, and names of files that attack.

use std::fs;
use std::io::Read;

use brasa_server::ServerOptions;
use serde_json::{Value, json};

use super::client::{Answer, Running, options, until};
use super::device::Device;

/// A server that keeps slots in an empty folder of this process.
fn server(name: &str) -> (Running, std::path::PathBuf) {
    let folder = std::env::temp_dir().join(format!("brasa-slots-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let slot_save_path = Some(folder.clone());
    (Running::start(ServerOptions { slot_save_path, ..options() }), folder)
}

fn complete(server: &Running, salt: Option<&str>) -> Value {
    let prompt = "ember: a small piece of coal or wood that glows in a dying fire. ".repeat(6);
    let body = json!({"prompt": prompt, "n_predict": 8, "temperature": 0.9, "seed": 3, "cache_salt": salt});
    server.post("/completion", &body).json(200)
}

#[test]
fn a_slot_comes_back_after_a_restart() {
    let (server, folder) = server("restart");
    let first = complete(&server, None);
    assert_eq!(first["tokens_cached"], 0);
    let file = json!({"filename": "ember.slot"});
    let saved = server.post("/slots/0?action=save", &file).json(200);
    let tokens = first["tokens_evaluated"].as_u64().unwrap() + 8;
    assert_eq!((&saved["id_slot"], &saved["filename"]), (&json!(0), &json!("ember.slot")));
    assert_eq!(saved["n_saved"], tokens);
    assert_eq!(saved["n_written"], fs::metadata(folder.join("ember.slot")).unwrap().len());
    assert!(saved["timings"]["save_ms"].is_number());
    server.stop();

    let server = Running::start(ServerOptions { slot_save_path: Some(folder.clone()), ..options() });
    let restored = server.post("/slots/3?action=restore", &file).json(200);
    assert_eq!((&restored["id_slot"], &restored["n_restored"]), (&json!(3), &json!(tokens)));
    assert_eq!(restored["n_read"], saved["n_written"]);
    assert!(restored["timings"]["restore_ms"].is_number());
    let again = complete(&server, None);
    assert_eq!(again["content"], first["content"]);
    assert_eq!(again["tokens_cached"], first["tokens_evaluated"].as_u64().unwrap() - 1);
    // Another user's request gets nothing of it.
    assert_eq!(complete(&server, Some("x"))["tokens_cached"], 0);
    // The slot has the text again, and another file of it has the same bytes.
    server.post("/slots/3?action=save", &json!({"filename": "again"})).json(200);
    assert_eq!(fs::read(folder.join("again")).unwrap(), fs::read(folder.join("ember.slot")).unwrap());

    // The request of the salt has replaced the text of slot 0; the texts of both are forgotten.
    let erased = server.post("/slots/3?action=erase", &json!({})).json(200);
    assert_eq!(erased, json!({"id_slot": 3, "n_erased": tokens}));
    assert_eq!(server.post("/slots/3?action=erase", &json!({})).json(200)["n_erased"], 0);
    assert_eq!(server.send("POST", "/slots/0?action=erase", &[], b"").json(200)["n_erased"], tokens);
    server.stop();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn names_that_attack_are_refused() {
    let (server, folder) = server("attacks");
    let outside = folder.with_extension("outside");
    fs::write(&outside, b"mine").unwrap();
    let long = "x".repeat(129);
    let names = [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "..\\x",
        ".hidden",
        "x.",
        "a\0b",
        "a\nb",
        "a:b",
        "C:x",
        "~",
        "*",
        &long,
    ];
    for action in ["save", "restore"] {
        for name in names {
            let answer = server.post(&format!("/slots/0?action={action}"), &json!({"filename": name}));
            assert_eq!(answer.error(400).1.as_deref(), Some("filename"), "{action} {name:?}");
        }
        for body in [json!({}), json!({"filename": 3}), json!({"filename": ["a"]})] {
            server.post(&format!("/slots/0?action={action}"), &body).error(400);
        }
        for slot in ["16", "-1", "x", "99999999999999999999"] {
            let answer = server.post(&format!("/slots/{slot}?action={action}"), &json!({"filename": "a"}));
            assert_eq!(answer.error(400).1.as_deref(), Some("id_slot"));
        }
    }
    server.post("/slots/0?action=restore", &json!({"filename": "absent"})).error(404);
    fs::create_dir(folder.join("folder")).unwrap();
    fs::write(folder.join("noise"), b"no session at all, but long enough").unwrap();
    server.post("/slots/0?action=restore", &json!({"filename": "folder"})).error(400);
    server.post("/slots/0?action=save", &json!({"filename": "folder"})).error(400);
    server.post("/slots/0?action=restore", &json!({"filename": "noise"})).error(400);
    #[cfg(unix)]
    for target in [outside.clone(), folder.join("absent"), folder.join("noise")] {
        let link = folder.join("link");
        std::os::unix::fs::symlink(target, &link).unwrap();
        for action in ["save", "restore"] {
            server.post(&format!("/slots/0?action={action}"), &json!({"filename": "link"})).error(400);
        }
        fs::remove_file(link).unwrap();
    }
    // Nothing but what the test has made is there.
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["folder", "noise"]);
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
    // A slot without a text has an empty file.
    assert_eq!(server.post("/slots/5?action=save", &json!({"filename": "empty"})).json(200)["n_saved"], 0);
    server.stop();
    fs::remove_file(outside).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_answer_names_its_slot() {
    let device = Device::new();
    let server = Running::start(device.options());
    // Both run at once: the first takes the lowest slot.
    device.hold(1);
    let begin = |prompt: &str| {
        let body = json!({"prompt": prompt, "n_predict": 3, "ignore_eos": true}).to_string();
        server.begin("POST", "/completion", &[], body.as_bytes())
    };
    let first = begin("An ember is");
    device.until_held();
    let second = begin("A harbor is");
    until("both have a slot", || server.get("/slots").json(200)[1]["is_processing"] == true);
    device.release();
    for (slot, mut stream) in [first, second].into_iter().enumerate() {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(Answer::parse(&bytes).json(200)["id_slot"], slot);
    }
    server.stop();
}

/// A text of a client, whose request names its slot.
fn remember(server: &Running, who: &str, slot: Option<i64>) -> Value {
    let prompt = format!("{who}: a word of its own, and some more of it. ").repeat(4);
    let body =
        json!({"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": true, "id_slot": slot});
    server.post("/completion", &body).json(200)
}

/// The tokens that a file of a slot holds, told by a slot that is otherwise unused.
fn saved_tokens(server: &Running, file: &str) -> u64 {
    let restored = server.post("/slots/15?action=restore", &json!({"filename": file})).json(200);
    server.post("/slots/15?action=erase", &json!({})).json(200);
    restored["n_restored"].as_u64().unwrap()
}

#[test]
fn two_clients_save_their_own_texts() {
    let (server, folder) = server("own");
    let tokens = |answer: &Value| answer["tokens_evaluated"].as_u64().unwrap() + 4;
    let (ada, ben) = (remember(&server, "ada ada", Some(3)), remember(&server, "ben", Some(0)));
    assert_eq!((&ada["id_slot"], &ben["id_slot"]), (&json!(3), &json!(0)));
    assert_ne!(tokens(&ada), tokens(&ben));
    // Requests of others run elsewhere, and where they must run here they leave no text.
    for _ in 0..3 {
        assert_eq!(remember(&server, "anybody", Some(-1))["id_slot"], 1);
    }
    assert_eq!(remember(&server, "anybody", None)["id_slot"], 1);
    for (slot, file, answer) in [(3, "ada", &ada), (0, "ben", &ben)] {
        let saved = server.post(&format!("/slots/{slot}?action=save"), &json!({"filename": file})).json(200);
        assert_eq!(saved["n_saved"], tokens(answer));
        assert_eq!(saved_tokens(&server, file), tokens(answer));
    }
    // A client goes on in its slot, whatever the form of its request.
    let chat = json!({"messages": [{"role": "user", "content": "A word?"}], "max_tokens": 3, "id_slot": 3});
    server.post("/v1/chat/completions", &chat).json(200);
    let saved = server.post("/slots/3?action=save", &json!({"filename": "chat"})).json(200);
    assert_ne!(saved["n_saved"], tokens(&ada));
    let completion = json!({"model": "lexicon", "prompt": "A word", "max_tokens": 3, "id_slot": 0});
    server.post("/v1/completions", &completion).json(200);
    let saved = server.post("/slots/0?action=save", &json!({"filename": "completion"})).json(200);
    assert_ne!(saved["n_saved"], tokens(&ben));
    // What is refused leaves the text.
    let long = json!({"prompt": "word ".repeat(2000), "n_predict": 1, "id_slot": 0});
    server.post("/completion", &long).error(400);
    let again = server.post("/slots/0?action=save", &json!({"filename": "again"})).json(200);
    assert_eq!(again["n_saved"], saved["n_saved"]);
    server.stop();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_request_waits_for_the_slot_that_it_names() {
    let folder = std::env::temp_dir().join(format!("brasa-slots-{}-waits", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let device = Device::new();
    let server = Running::start(ServerOptions { slot_save_path: Some(folder.clone()), ..device.options() });
    device.hold(1);
    let begin = |prompt: &str, slot: i64| {
        let body = json!({"prompt": prompt, "n_predict": 3, "ignore_eos": true, "id_slot": slot}).to_string();
        server.begin("POST", "/completion", &[], body.as_bytes())
    };
    let first = begin("An ember is", 2);
    device.until_held();
    let second = begin("A harbor is a place", 2);
    // Somebody else needs not wait, and the slot of a running request cannot be saved.
    let other = begin("A harbor", -1);
    until("another runs", || server.get("/slots").json(200)[0]["is_processing"] == true);
    let file = json!({"filename": "early"});
    assert_eq!(server.post("/slots/2?action=save", &file).error(503).2, "slot_busy");
    device.release();
    for (mut stream, slot) in [(first, 2), (second, 2), (other, 0)] {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(Answer::parse(&bytes).json(200)["id_slot"], slot);
    }
    server.stop();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_slot_that_is_none_is_refused() {
    let (server, folder) = server("none");
    for slot in [json!(16), json!(-2), json!(0.5), json!("three"), json!([0])] {
        let body = json!({"prompt": "a", "n_predict": 1, "id_slot": slot});
        assert_eq!(server.post("/completion", &body).error(400).1.as_deref(), Some("id_slot"), "{slot}");
    }
    // One slot holds one text.
    let several = json!({"prompt": ["a", "b"], "n_predict": 1, "id_slot": 0});
    assert_eq!(server.post("/completion", &several).error(400).1.as_deref(), Some("id_slot"));
    let several = json!({"model": "lexicon", "prompt": "a", "n": 2, "max_tokens": 1, "id_slot": 0});
    assert_eq!(server.post("/v1/completions", &several).error(400).1.as_deref(), Some("id_slot"));
    server.stop();
    fs::remove_dir_all(folder).unwrap();
}
