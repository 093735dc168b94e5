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

/// A slot that a request names would not be its own, so that saving it would write another client's text.
#[test]
fn a_named_slot_is_refused_where_slots_are_saved() {
    let (server, _folder) = server("named");
    let ask =
        |slot: Value| server.post("/completion", &json!({"prompt": "a", "n_predict": 1, "id_slot": slot}));
    for slot in [json!(3), json!(0), json!("three")] {
        assert_eq!(ask(slot).error(400).1.as_deref(), Some("id_slot"));
    }
    for slot in [json!(-1), Value::Null] {
        assert_eq!(ask(slot).json(200)["id_slot"], 0);
    }
    server.stop();
}
