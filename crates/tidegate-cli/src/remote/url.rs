//! URLs of servers.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

/// The URL of a server: `http://127.0.0.1:7700`, or `https://limits.example.com/tidegate` behind a
/// proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    /// Without a trailing slash.
    text: String,
    host: String,
}

impl ServerUrl {
    /// Parses a URL. The error says what is wrong and what is allowed.
    pub(crate) fn parse(text_given: &str) -> Result<ServerUrl, String> {
        let text = text_given.trim_end_matches('/');
        let schemeless = !text_given.contains("://");
        let refuse = |why: &str| {
            let advice =
                if schemeless && !text.is_empty() { format!("; write http://{text}") } else { String::new() };
            Err(format!("{why}, such as http://127.0.0.1:7700, found '{text_given}'{advice}"))
        };
        let Ok(uri) = text.parse::<Uri>() else { return refuse("must be a URL") };
        if schemeless || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return refuse("must begin with http:// or https://");
        }
        let Some(authority) = uri.authority() else { return refuse("must name a host") };
        if authority.as_str().contains('@') {
            // Not quoted in the message: it may be a secret.
            return Err("must not contain a name or a password; set TIDEGATE_TOKEN to a token".to_owned());
        }
        if uri.host().is_none_or(str::is_empty) {
            return refuse("must name a host");
        }
        if uri.query().is_some() || text.contains('#') {
            return refuse("must end with the host, or with a path");
        }
        Ok(ServerUrl { text: text.to_owned(), host: authority.host().to_owned() })
    }

    /// The URL of a path on this server.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.text)
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_https(&self) -> bool {
        self.text.starts_with("https://")
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        self.host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Percent-encodes text for a path segment or a query value.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
                out.extend(['%', digit(byte >> 4), digit(byte & 15)].map(|c| c.to_ascii_uppercase()));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_url_is_parsed() {
        for (text_given, at) in [
            ("http://127.0.0.1:7700", "http://127.0.0.1:7700/v1/limits"),
            ("http://127.0.0.1:7700/", "http://127.0.0.1:7700/v1/limits"),
            ("https://limits.example.com/tide//", "https://limits.example.com/tide/v1/limits"),
            ("http://[::1]:7700", "http://[::1]:7700/v1/limits"),
        ] {
            assert_eq!(ServerUrl::parse(text_given).map(|url| url.at("/v1/limits")), Ok(at.to_owned()));
        }
    }

    #[test]
    fn invalid_url_is_refused_with_advice() {
        for (text_given, why) in [
            ("localhost:7700", "write http://localhost:7700"),
            ("127.0.0.1", "write http://127.0.0.1"),
            ("", "must be"),
            ("ftp://host", "must begin with http"),
            ("http://", "must "),
            ("http://host?x=1", "must end with the host"),
            ("http://host/#x", "must end with the host"),
            ("http://ho st", "must be a URL"),
        ] {
            let message = ServerUrl::parse(text_given).expect_err(text_given);
            assert!(message.contains(why), "{text_given}: {message}");
        }
    }

    #[test]
    fn password_in_url_is_not_quoted() {
        let message = ServerUrl::parse("http://ada:hunter2@host").expect_err("it has a password");
        assert!(message.contains("TIDEGATE_TOKEN") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn loopback_hosts_are_recognized() {
        for here in ["http://localhost:1", "http://LOCALHOST", "http://127.9.9.9:1", "https://[::1]:1"] {
            assert!(ServerUrl::parse(here).expect(here).is_loopback(), "{here}");
        }
        for elsewhere in ["http://10.0.0.1", "http://localhost.example.com", "http://[::2]:1"] {
            assert!(!ServerUrl::parse(elsewhere).expect(elsewhere).is_loopback(), "{elsewhere}");
        }
    }

    #[test]
    fn path_segment_is_percent_encoded() {
        assert_eq!(encoded("shop/sale:1"), "shop%2Fsale%3A1");
        assert_eq!(encoded("海 ?&+%"), "%E6%B5%B7%20%3F%26%2B%25");
        assert_eq!(encoded("a-b.c_d~"), "a-b.c_d~");
    }
}
