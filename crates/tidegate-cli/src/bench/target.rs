//! The target of a load test: protocol and address of a server.

use std::fmt;

use crate::remote::url::ServerUrl;

/// Default ports of `tidegate serve`.
const HTTP_PORT: u16 = 7700;
const RESP_PORT: u16 = 7701;

/// The protocol of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchProtocol {
    Http,
    Resp,
}

impl BenchProtocol {
    /// The name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            BenchProtocol::Http => "http",
            BenchProtocol::Resp => "resp",
        }
    }
}

/// A target as written and as parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BenchTarget {
    /// As written, without a trailing slash.
    text: String,
    pub(super) protocol: BenchProtocol,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The path before `/v1`, for a server behind a proxy.
    pub(super) path: String,
}

impl BenchTarget {
    /// Parses a URL. The error says what is wrong and what is allowed.
    pub(crate) fn parse(text_given: &str) -> Result<BenchTarget, String> {
        let text = text_given.trim_end_matches('/');
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (protocol, port) = match scheme {
            "http" => (BenchProtocol::Http, HTTP_PORT),
            "redis" => (BenchProtocol::Resp, RESP_PORT),
            "https" | "rediss" => {
                return Err(format!(
                    "{scheme}:// is not supported: it would measure the encryption; give http:// or redis://"
                ));
            }
            "grpc" => return Err("grpc:// is not supported yet; give http:// or redis://".to_owned()),
            _ => {
                return Err(format!(
                    "must begin with http:// or redis://, such as http://127.0.0.1:7700, found '{text_given}'"
                ));
            }
        };
        // Uses the URL parser of the other commands, so that all accept the same URLs.
        ServerUrl::parse(&format!("http://{rest}"))?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        if protocol == BenchProtocol::Resp && !path.is_empty() {
            return Err(format!("must be redis://HOST:PORT without a path, found '{text_given}'"));
        }
        let (host, port) = host_and_port(authority, port)?;
        Ok(BenchTarget { text: text.to_owned(), protocol, host, port, path: path.to_owned() })
    }

    /// The HTTP URL of the same server: port 7700 for a RESP target.
    pub(super) fn http(&self) -> Result<ServerUrl, String> {
        match self.protocol {
            BenchProtocol::Http => ServerUrl::parse(&self.text),
            BenchProtocol::Resp if self.host.contains(':') => {
                ServerUrl::parse(&format!("http://[{}]:{HTTP_PORT}", self.host))
            }
            BenchProtocol::Resp => ServerUrl::parse(&format!("http://{}:{HTTP_PORT}", self.host)),
        }
    }
}

impl fmt::Display for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn host_and_port(authority: &str, default_port: u16) -> Result<(String, u16), String> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port =
                port.parse().map_err(|_| format!("must have a port from 0 to 65535, found '{port}'"))?;
            (host, port)
        }
        _ => (authority, default_port),
    };
    Ok((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_parsed_into_protocol_and_address() {
        for (text_given, protocol, host, port, path) in [
            ("http://127.0.0.1:7700", BenchProtocol::Http, "127.0.0.1", 7700, ""),
            ("http://limits/", BenchProtocol::Http, "limits", 7700, ""),
            ("http://limits:80/tide/", BenchProtocol::Http, "limits", 80, "/tide"),
            ("redis://[::1]:7", BenchProtocol::Resp, "::1", 7, ""),
            ("redis://[::1]", BenchProtocol::Resp, "::1", 7701, ""),
            ("redis://limits", BenchProtocol::Resp, "limits", 7701, ""),
        ] {
            let target = BenchTarget::parse(text_given).expect(text_given);
            let found = (target.protocol, &*target.host, target.port, &*target.path);
            assert_eq!(found, (protocol, host, port, path), "{text_given}");
        }
    }

    #[test]
    fn http_url_of_resp_target_has_the_default_port() {
        for (text_given, http) in [
            ("http://limits:80/tide/", "http://limits:80/tide"),
            ("redis://limits:6379", "http://limits:7700"),
            ("redis://[::1]:6379", "http://[::1]:7700"),
        ] {
            let target = BenchTarget::parse(text_given).expect(text_given);
            assert_eq!(target.http().map(|url| url.to_string()), Ok(http.to_owned()));
        }
    }

    #[test]
    fn unsupported_url_is_refused_with_alternatives() {
        for (text_given, why) in [
            ("", "must begin with http:// or redis://"),
            ("127.0.0.1:7700", "must begin with http:// or redis://"),
            ("ftp://host", "must begin with http:// or redis://"),
            ("grpc://host:7700", "grpc:// is not supported yet"),
            ("https://host", "would measure the encryption"),
            ("rediss://host", "would measure the encryption"),
            ("redis://host:1/0", "without a path"),
            ("http://host:99999", "must "),
            ("http://", "must "),
            ("redis://ada:secret@host", "must not contain a name or a password"),
        ] {
            let message = BenchTarget::parse(text_given).expect_err(text_given);
            assert!(message.contains(why) && !message.contains("secret"), "{text_given}: {message}");
        }
    }
}
