//! Requests to the server: addresses, the token, statuses in words.

use std::fmt::Write;
use std::io::Read;
use std::time::Duration;

use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body};

use crate::name::RepoName;
use crate::{HubError, Result, tls};

/// Most bytes of a response with a list of files.
const LARGEST_LISTING_BYTES: u64 = 32 << 20;

/// A connection to the server.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

impl Client {
    /// A client for the server at `endpoint`.
    pub fn new(endpoint: &str, token: Option<&str>) -> Result<Self> {
        let mut config = Agent::config_builder()
            .tls_config(tls::config()?)
            .https_only(endpoint.starts_with("https://"))
            .http_status_as_error(false)
            .user_agent(concat!("brasa/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_mins(1)))
            .timeout_per_read(Some(Duration::from_mins(1)));
        let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
        if ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| host.starts_with(own)) {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.map(str::to_owned),
        })
    }

    /// The address of the list of a repository's files, and the list.
    pub fn listing(&self, repo: &RepoName) -> Result<(String, Vec<u8>)> {
        let url = format!("{}/api/models/{repo}/revision/main?blobs=true", self.endpoint);
        let mut response = self.get(&url, None)?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(&repo.to_string(), repo, response.status()));
        }
        let mut text = Vec::new();
        let mut body = response.body_mut().as_reader().take(LARGEST_LISTING_BYTES + 1);
        body.read_to_end(&mut text).map_err(|error| unreachable(&url, &error))?;
        if text.len() as u64 > LARGEST_LISTING_BYTES {
            return Err(HubError::Answer {
                url,
                reason: format!("it is larger than {LARGEST_LISTING_BYTES} bytes"),
            });
        }
        Ok((url, text))
    }

    /// Requests the bytes of a file from `start` on. The answer says whether its bytes begin at `start`.
    pub fn file(&self, repo: &RepoName, commit: &str, name: &str, start: u64) -> Result<Response<Body>> {
        let url = format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, escaped(name));
        let response = self.get(&url, (start > 0).then_some(start))?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            status => Err(self.refused(&format!("{repo}: {name}"), repo, status)),
        }
    }

    fn get(&self, url: &str, start: Option<u64>) -> Result<Response<Body>> {
        let mut request = self.agent.get(url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(token) = &self.token {
            // The token stays with this server: it is not sent to where the server redirects to.
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(start) = start {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        request.call().map_err(|error| unreachable(url, &error))
    }

    fn refused(&self, what: &str, repo: &RepoName, status: StatusCode) -> HubError {
        let page = format!("{}/{repo}", self.endpoint);
        let (meaning, hint) = match (status.as_u16(), &self.token) {
            (401, None) => (
                "no such repository, or one that needs a token",
                format!("check the name at {page}; a token goes into HF_TOKEN, or `hf auth login` keeps it"),
            ),
            (401, Some(_)) => ("the token is not valid", "`hf auth login` makes a new one".to_owned()),
            (403, _) => ("no permission", format!("accept the licence at {page} with the token's account")),
            (404, _) => ("there is no such repository or file", format!("check the name at {page}")),
            (429, _) => ("too many requests", "wait for a while".to_owned()),
            (500.., _) => ("the server has a problem", "try again later".to_owned()),
            _ => ("the server refuses", String::new()),
        };
        let hint = if hint.is_empty() { hint } else { format!("\nhint: {hint}") };
        HubError::Refused { what: what.to_owned(), status: status.as_u16(), meaning, hint }
    }
}

pub fn unreachable(url: &str, error: &dyn std::error::Error) -> HubError {
    HubError::Unreachable { url: url.to_owned(), reason: error.to_string() }
}

/// The name of a file, escaped for an address.
fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/') {
            escaped.push(byte.into());
        } else {
            // Writing to a text does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
