//! Listen addresses: `127.0.0.1:7700`.

use std::net::{IpAddr, SocketAddr};

use super::quote::quoted;

/// Parses an address with its port: `127.0.0.1:7700`, `0.0.0.0:7700`, `[::1]:7700`. Port 0 selects a free port.
///
/// ```
/// assert!(tidegate_config::text::parse_address("[::1]:7700").is_ok());
/// assert!(tidegate_config::text::parse_address("localhost:7700").unwrap_err().ends_with("write 127.0.0.1:7700"));
/// ```
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let advice = suggest_address(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
        format!(
            "must be an address and a port such as 127.0.0.1:7700 or [::1]:7700, found {}{advice}",
            quoted(text)
        )
    })
}

/// Suggests a valid address for a port alone, a host name or a URL.
fn suggest_address(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.split_once("://").map_or(text, |(_, rest)| rest).trim_end_matches('/');
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port: u16 = port.parse().ok()?;
    let host = host.trim_matches(['[', ']']);
    let address = match host {
        "" => {
            return Some(format!("127.0.0.1:{port} for this machine alone, or 0.0.0.0:{port} for everybody"));
        }
        "*" => IpAddr::from([0; 4]),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        _ => host.parse().ok()?,
    };
    Some(SocketAddr::new(address, port).to_string())
}
