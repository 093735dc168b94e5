//! The files of the web page. They are part of the program, so that serving them needs no network and no folder.
//!
//! A browser runs the page under the policy in `page/policy.txt`, which forbids inline scripts, other hosts and HTML made of text.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::api::status;
use crate::http::error::ApiError;
use crate::http::reply;
use crate::state::App;

/// A file of the page.
struct File {
    /// The file's path below the server's root.
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! files {
    ($($path:literal $content_type:ident),+ $(,)?) => {
        &[$(File { path: $path, content_type: $content_type, bytes: include_bytes!(concat!("../../page", $path)) }),+]
    };
}

const FILES: &[File] = files![
    "/index.html" HTML,
    "/assets/address.js" SCRIPT,
    "/assets/api.js" SCRIPT,
    "/assets/app.js" SCRIPT,
    "/assets/attachments.js" SCRIPT,
    "/assets/chats.js" SCRIPT,
    "/assets/composer.js" SCRIPT,
    "/assets/conversation.js" SCRIPT,
    "/assets/dictation.js" SCRIPT,
    "/assets/dom.js" SCRIPT,
    "/assets/drafts.js" SCRIPT,
    "/assets/forgetting.js" SCRIPT,
    "/assets/generate.js" SCRIPT,
    "/assets/highlight.js" SCRIPT,
    "/assets/icon.svg" PICTURE,
    "/assets/markdown-it.LICENSE" TEXT,
    "/assets/markdown-it.js" SCRIPT,
    "/assets/markdown.js" SCRIPT,
    "/assets/markdown_out.js" SCRIPT,
    "/assets/math.js" SCRIPT,
    "/assets/message.js" SCRIPT,
    "/assets/microphone.js" SCRIPT,
    "/assets/models.js" SCRIPT,
    "/assets/notice.js" SCRIPT,
    "/assets/presets.js" SCRIPT,
    "/assets/recorder.js" SCRIPT,
    "/assets/request.js" SCRIPT,
    "/assets/search.js" SCRIPT,
    "/assets/settings.js" SCRIPT,
    "/assets/settings_panel.js" SCRIPT,
    "/assets/shortcuts.js" SCRIPT,
    "/assets/sidebar.js" SCRIPT,
    "/assets/speed.js" SCRIPT,
    "/assets/sse.js" SCRIPT,
    "/assets/store.js" SCRIPT,
    "/assets/style.css" CSS,
    "/assets/temml.LICENSE" TEXT,
    "/assets/temml.js" SCRIPT,
    "/assets/theme.js" SCRIPT,
    "/assets/tokens.js" SCRIPT,
    "/assets/toolcalls.js" SCRIPT,
    "/assets/transfer.js" SCRIPT,
    "/assets/tree.js" SCRIPT,
];

/// Serves a file of the page. Without the page, answers the root with the server's name.
pub(crate) async fn serve(State(app): State<App>, request: Request) -> Response {
    let path = request.uri().path();
    if !app.options.page && path == "/" {
        return status::root();
    }
    let name = if path == "/" { "/index.html" } else { path };
    if let Some(file) = FILES.iter().find(|file| app.options.page && file.path == name) {
        return answer(file, request.headers());
    }
    let path: String = path.chars().take(128).collect();
    ApiError::not_found("unknown_path", format!("there is nothing at {path}")).into_response()
}

/// The answer for a file: 304 without contents if the browser's copy is current.
fn answer(file: &File, asked: &HeaderMap) -> Response {
    let digest = Sha256::digest(file.bytes);
    let digest = digest.iter().take(16).fold(0, |digest, &byte| digest << 8 | u128::from(byte));
    let tag = HeaderValue::try_from(format!("\"{digest:032x}\"")).unwrap_or(HeaderValue::from_static("\"\""));
    let known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| *known == tag);
    let mut response = if known {
        reply::with_type(StatusCode::NOT_MODIFIED, file.content_type, Body::empty())
    } else {
        reply::with_type(StatusCode::OK, file.content_type, file.bytes)
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag);
    for (name, value) in [
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, include_str!("../../page/policy.txt").trim_ascii_end()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
