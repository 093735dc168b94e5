//! The page's files. What the page does is tested in a browser: `page/test/walk.mjs`.

use std::fs;
use std::path::Path;

use brasa_server::ServerOptions;

use super::client::{Running, options, server};

#[test]
fn every_file_of_the_page_is_served_under_its_policy() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
    let policy = fs::read_to_string(folder.join("policy.txt")).unwrap();
    let assets = fs::read_dir(folder.join("assets")).unwrap();
    let mut paths: Vec<String> =
        assets.map(|entry| format!("/assets/{}", entry.unwrap().file_name().to_string_lossy())).collect();
    paths.push("/index.html".into());
    for path in &paths {
        let answer = server().get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.body, fs::read_to_string(folder.join(&path[1..])).unwrap(), "{path}");
        assert_eq!(answer.header("content-security-policy"), Some(policy.trim()), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        let tag = answer.header("etag").unwrap();
        let again = server().send("GET", path, &[("if-none-match", tag)], b"");
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{path}");
    }
    assert_eq!(server().get("/").body, server().get("/index.html").body);
    for path in [
        "/assets/",
        "/assets/nothing.js",
        "/assets/../policy.txt",
        "/policy.txt",
        "/assets/%2e%2e/index.html",
    ] {
        assert_eq!(server().get(path).status, 404, "{path}");
    }
}

#[test]
fn without_the_page_the_root_names_the_server() {
    let running = Running::start(ServerOptions { page: false, ..options() });
    assert!(running.get("/").body.starts_with(r#"{"name":"brasa""#));
    assert_eq!(running.get("/assets/app.js").status, 404);
    running.stop();
}
