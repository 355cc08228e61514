//! HTTP client for a Tidegate server.
//!
//! An error before the reply is [`Failure::Unreachable`]. Its message says where the connection failed, what to do,
//! and whether the request may have been executed.
//!
//! Trusted certificates are those of the system, which include company certificates; Mozilla's if the system has
//! none. A proxy from the environment is used, except for loopback addresses.

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderValue, IF_MATCH};
use ureq::http::{Method, Request, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body, Proxy, Timeout};

use super::problem;
use super::url::ServerUrl;
use crate::args::{DEFAULT_SERVER, ServerArgs};
use crate::{Failure, read_whole};

/// Timeout for name resolution and connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest reply: a page of limits with many overrides.
const MAX_REPLY_BYTES: u64 = 64 << 20;
const USER_AGENT: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

/// A server to send requests to.
#[derive(Debug)]
pub(crate) struct ServerClient {
    url: ServerUrl,
    authorization: Option<HeaderValue>,
    agent: Agent,
    timeout: Duration,
    /// The option that names the server, for messages.
    option: &'static str,
}

/// A successful reply.
#[derive(Debug)]
pub(crate) struct ServerReply {
    /// The body.
    pub(crate) text: String,
    /// The `ETag` without quotes; empty if there is none.
    pub(crate) version: String,
}

impl ServerClient {
    /// The server of the arguments or the environment.
    pub(crate) fn new(args: &ServerArgs) -> Result<ServerClient, Failure> {
        ServerClient::with_extra_timeout(args, Duration::ZERO)
    }

    /// A client with a longer timeout, for requests that wait in the server's queue.
    pub(super) fn with_extra_timeout(args: &ServerArgs, longer: Duration) -> Result<ServerClient, Failure> {
        let url = match &args.server {
            Some(url) => url.clone(),
            None => server_of_environment()?,
        };
        let timeout = args.timeout.saturating_add(longer);
        let proxy = if url.is_loopback() { None } else { Proxy::try_from_env() };
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(USER_AGENT)
            .proxy(proxy);
        let config = if url.is_https() { config.tls_config(tls()) } else { config };
        let authorization = authorization(args.token_file.as_deref())?;
        Ok(ServerClient { agent: config.build().into(), url, authorization, timeout, option: "--server" })
    }

    /// Names another option in messages.
    pub(crate) fn named_by(self, option: &'static str) -> ServerClient {
        ServerClient { option, ..self }
    }

    /// Sends GET.
    pub(crate) fn get(&self, path: &str) -> Result<ServerReply, Failure> {
        self.send(self.request(Method::GET, path), ())
    }

    /// Sends POST with a JSON body.
    pub(crate) fn post(&self, path: &str, body: &str) -> Result<ServerReply, Failure> {
        self.send(self.request(Method::POST, path).header(CONTENT_TYPE, "application/json"), body)
    }

    /// Sends PUT, conditional on a version.
    pub(super) fn put(&self, path: &str, body: &str, version: Option<&str>) -> Result<ServerReply, Failure> {
        let request = self.request(Method::PUT, path).header(CONTENT_TYPE, "application/json");
        self.send(expecting(request, version), body)
    }

    /// Sends DELETE, conditional on a version.
    pub(crate) fn delete(&self, path: &str, version: Option<&str>) -> Result<ServerReply, Failure> {
        self.send(expecting(self.request(Method::DELETE, path), version), ())
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let request = Request::builder().method(method).uri(self.url.at(path));
        match &self.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        }
    }

    fn send(&self, request: Builder, body: impl AsSendBody) -> Result<ServerReply, Failure> {
        let request = request.body(body).map_err(|error| Failure::Failed(format!("cannot ask: {error}")))?;
        let changes = request.method() != Method::GET;
        let unreached = |error: ureq::Error| self.unreachable(&error, changes);
        let mut response = self.agent.run(request).map_err(unreached)?;
        let text = read(&mut response).map_err(unreached)?;
        let status = response.status();
        if !status.is_success() {
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            let sent = self.authorization.is_some();
            return Err(problem::failure(&self.url, status.as_u16(), location, &text, sent));
        }
        let version = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).unwrap_or_default();
        Ok(ServerReply { text, version: version.trim_matches('"').to_owned() })
    }

    /// Explains a missing reply and gives advice.
    fn unreachable(&self, error: &ureq::Error, changes: bool) -> Failure {
        let url = &self.url;
        let connected = matches!(
            error,
            ureq::Error::Timeout(
                Timeout::Global | Timeout::SendRequest | Timeout::RecvResponse | Timeout::RecvBody
            ) | ureq::Error::Protocol(_)
        );
        let why = match error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                format!("cannot reach {url}: no connection within {}s", CONNECT_TIMEOUT.as_secs())
            }
            ureq::Error::Timeout(_) => {
                format!(
                    "{url} did not answer within {}ms; --timeout sets a longer time",
                    self.timeout.as_millis()
                )
            }
            ureq::Error::Protocol(_) => {
                let option = self.option;
                format!(
                    "{url} is not an HTTP server ({error}); {option} must be the address that 'tidegate serve' prints as http="
                )
            }
            ureq::Error::Io(error) => format!("cannot reach {url}: {error}"),
            ureq::Error::HostNotFound => format!("cannot reach {url}: unknown host"),
            error => format!("cannot reach {url}: {error}"),
        };
        let advice = if connected && changes {
            "the request may have been executed; check before you repeat it".to_owned()
        } else if connected {
            String::new()
        } else if self.option == "--server" {
            "is 'tidegate serve' running there? Otherwise give --server URL or set TIDEGATE_SERVER".to_owned()
        } else {
            format!("is 'tidegate serve' running there? Otherwise give {} URL", self.option)
        };
        Failure::Unreachable(format!("{why}\n{advice}"))
    }
}

type Builder = ureq::http::request::Builder;

fn expecting(request: Builder, version: Option<&str>) -> Builder {
    match version {
        Some(version) => request.header(IF_MATCH, format!("\"{version}\"")),
        None => request,
    }
}

fn read(response: &mut Response<Body>) -> Result<String, ureq::Error> {
    response.body_mut().with_config().limit(MAX_REPLY_BYTES).read_to_string()
}

impl ServerReply {
    /// Parses the JSON body.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.text).map_err(|error| {
            Failure::Failed(format!("cannot parse the server's reply ({error}); is it a Tidegate server?"))
        })
    }
}

/// The trusted certificates.
fn tls() -> TlsConfig {
    let trusted = rustls_native_certs::load_native_certs().certs;
    if trusted.is_empty() {
        return TlsConfig::default();
    }
    let trusted = trusted.iter().map(|each| Certificate::from_der(each.as_ref()).to_owned());
    TlsConfig::builder().root_certs(RootCerts::from(trusted)).build()
}

fn server_of_environment() -> Result<ServerUrl, Failure> {
    match environment("TIDEGATE_SERVER")? {
        Some(written) => {
            ServerUrl::parse(&written).map_err(|why| Failure::BadInput(format!("TIDEGATE_SERVER {why}")))
        }
        None => ServerUrl::parse(DEFAULT_SERVER).map_err(Failure::Failed),
    }
}

/// The `Authorization` header, if there is a token.
fn authorization(file: Option<&Path>) -> Result<Option<HeaderValue>, Failure> {
    let Some(token) = token(file)? else { return Ok(None) };
    let mut field = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| Failure::BadInput("the token is invalid".to_owned()))?;
    field.set_sensitive(true);
    Ok(Some(field))
}

/// The token from a file or the environment.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let (from, token) = match file {
        Some(path) => {
            let (name, bytes) = read_whole(path)?;
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            if text.is_empty() {
                return Err(Failure::BadInput(format!("{name} is empty; it must contain a token")));
            }
            (name, Some(text))
        }
        None => ("TIDEGATE_TOKEN".to_owned(), environment("TIDEGATE_TOKEN")?),
    };
    let Some(token) = token else { return Ok(None) };
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = format!("{from} is not a token: it must be one word, as printed by 'tidegate token new'");
        return Err(Failure::BadInput(why));
    }
    Ok(Some(token))
}

/// Reads a variable; an empty one counts as unset.
#[expect(clippy::disallowed_methods, reason = "this is the crate that reads the environment")]
pub(crate) fn environment(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Failure::BadInput(format!("{name} must be text"))),
    }
}
