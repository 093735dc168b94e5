//! Host names that the server accepts.
//!
//! The owner of a domain can let its name point at 127.0.0.1 after a browser has opened a page of it (DNS rebinding). For the
//! browser, the server then has the page's own origin, so that [`cors`](crate::http::cors) does not refuse the page. Only the
//! name in `Host` shows that it is another site's page.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::error::ApiError;
use crate::options::ServerOptions;

/// Endings of private host names, which cannot be registered on the internet.
const PRIVATE_ENDINGS: [&str; 3] = [".local", ".internal", ".home.arpa"];

/// The host names and addresses at which the server accepts requests.
pub(crate) struct Hosts {
    /// Allowed names in lower case.
    names: Vec<String>,
    /// True if every name is served.
    any: bool,
    /// True if only this machine can reach the server.
    is_private: bool,
}

impl Hosts {
    /// The names that `options` allow. With a key, or over TLS, every name is served, since a page of a rebound name has neither
    /// the key nor a certificate.
    pub fn new(options: &ServerOptions) -> Self {
        let names: Vec<String> = options
            .allowed_hosts
            .iter()
            .map(|name| name.trim().trim_matches(['[', ']']).to_lowercase())
            .collect();
        let any =
            !options.api_keys.is_empty() || options.tls.is_some() || names.iter().any(|name| name == "*");
        Self { names, any, is_private: options.is_private() }
    }

    /// True if a request to `authority`, a host with or without a port, is served.
    pub fn serve(&self, authority: &str) -> bool {
        if self.any {
            return true;
        }
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        let host = authority.host().trim_matches(['[', ']']).trim_end_matches('.').to_lowercase();
        self.names.contains(&host)
            || host == "localhost"
            || host.ends_with(".localhost")
            || self.is_own(&host)
    }

    /// True for addresses, which cannot be rebound, and for names of a private network if that network can reach the server.
    fn is_own(&self, host: &str) -> bool {
        let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
        if self.is_private {
            return address.is_ok_and(|address| address.is_loopback());
        }
        // Addresses may be translated on the way, for example to a container.
        let is_private = !host.contains('.') || PRIVATE_ENDINGS.iter().any(|end| host.ends_with(end));
        address.is_ok() || !host.is_empty() && is_private
    }
}

/// Refuses requests to names that are not served.
pub(crate) async fn check(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let named = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let target = request.uri().authority().map(Authority::as_str);
    if let Some(other) = named.chain(target).find(|host| !hosts.serve(host)) {
        let shown: String = other.chars().take(128).collect();
        let message = format!("this server is not served as {shown:?}; --allowed-hosts allows a name");
        return ApiError::forbidden("host_not_allowed", message).into_response();
    }
    next.run(request).await
}
