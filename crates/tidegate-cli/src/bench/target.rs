//! What load is put on: a door of a server.

use std::fmt;

use crate::remote::url::ServerUrl;

/// Where `tidegate serve` listens unless said.
const HTTP_PORT: u16 = 7700;
const RESP_PORT: u16 = 7701;

/// How questions are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchProtocol {
    Http,
    Resp,
}

impl BenchProtocol {
    /// Its name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            BenchProtocol::Http => "http",
            BenchProtocol::Resp => "resp",
        }
    }
}

/// A door of a server, as it was typed and as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BenchTarget {
    /// As it was typed, without a slash at its end.
    text: String,
    pub(super) protocol: BenchProtocol,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// What goes before `/v1`, if the server is behind something.
    pub(super) path: String,
}

impl BenchTarget {
    /// Reads what somebody wrote, or says what is wrong with it and what would be right.
    pub(crate) fn parse(text_given: &str) -> Result<BenchTarget, String> {
        let text = text_given.trim_end_matches('/');
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (protocol, port) = match scheme {
            "http" => (BenchProtocol::Http, HTTP_PORT),
            "redis" => (BenchProtocol::Resp, RESP_PORT),
            "https" | "rediss" => {
                return Err(format!(
                    "{scheme}:// is not measured: it would measure the encryption; give http:// or redis://"
                ));
            }
            "grpc" => return Err("grpc:// is not spoken yet; give http:// or redis://".to_owned()),
            _ => {
                return Err(format!(
                    "must begin with http:// or redis://, such as http://127.0.0.1:7700, found '{text_given}'"
                ));
            }
        };
        // One reader of URLs: what is no URL for the other commands is none here.
        ServerUrl::parse(&format!("http://{rest}"))?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        if protocol == BenchProtocol::Resp && !path.is_empty() {
            return Err(format!("must be redis://HOST:PORT and nothing behind it, found '{text_given}'"));
        }
        let (host, port) = host_and_port(authority, port)?;
        Ok(BenchTarget { text: text.to_owned(), protocol, host, port, path: path.to_owned() })
    }

    /// Where the HTTP door of the same server is, unless somebody says otherwise.
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

fn host_and_port(authority: &str, usual: u16) -> Result<(String, u16), String> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port =
                port.parse().map_err(|_| format!("must have a port from 0 to 65535, found '{port}'"))?;
            (host, port)
        }
        _ => (authority, usual),
    };
    Ok((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_found_by_its_scheme() {
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
    fn limits_are_made_beside_the_door_that_is_measured() {
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
    fn what_cannot_be_measured_is_told_what_can() {
        for (text_given, why) in [
            ("", "must begin with http:// or redis://"),
            ("127.0.0.1:7700", "must begin with http:// or redis://"),
            ("ftp://host", "must begin with http:// or redis://"),
            ("grpc://host:7700", "grpc:// is not spoken yet"),
            ("https://host", "would measure the encryption"),
            ("rediss://host", "would measure the encryption"),
            ("redis://host:1/0", "nothing behind it"),
            ("http://host:99999", "must "),
            ("http://", "must "),
            ("redis://ada:secret@host", "must not contain a name or a password"),
        ] {
            let message = BenchTarget::parse(text_given).expect_err(text_given);
            assert!(message.contains(why) && !message.contains("secret"), "{text_given}: {message}");
        }
    }
}
