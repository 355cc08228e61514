//! The client of a request, as a key: the address of the peer, or the address that trusted proxies report.
//!
//! ```text
//!   X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7      peer 10.0.0.1      trusted: 10.0.0.0/8
//!                    forged   ▲ the client  trusted ◀──── trusted
//! ```
//!
//! Any client can send `X-Forwarded-For`. Each proxy appends the address that it saw, so the list is read from the right,
//! and only as far as trusted proxies wrote it. An entry that cannot be read makes the proxy itself the client.
//!
//! IPv4 addresses inside IPv6 are IPv4. An IPv6 client is its /64, because one subscriber can use any address in it. A
//! request without a known peer address is an error and never counted under a shared key.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use ::http::{Extensions, Request};

use super::{IpNetwork, IpNetworkError, address_key};
use crate::layer::RequestLimits;

/// The address of the peer, put into a request's extensions by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// The key of the client of a request.
pub trait ClientAddress: Send + Sync + 'static {
    /// The client's address; `None` if the peer's address is not known.
    fn address(&self, headers: &::http::HeaderMap, peer: Option<IpAddr>) -> Option<IpAddr>;
}

/// Counts by the address of the peer: for servers that clients connect to directly.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeerIp;

impl ClientAddress for PeerIp {
    fn address(&self, _headers: &::http::HeaderMap, peer: Option<IpAddr>) -> Option<IpAddr> {
        peer.map(|peer| peer.to_canonical())
    }
}

/// Counts by `X-Forwarded-For` as far as trusted proxies wrote it: for servers behind proxies.
#[derive(Debug, Clone, Default)]
pub struct ForwardedFor {
    trusted: Vec<IpNetwork>,
}

impl ForwardedFor {
    /// Trusts the proxies in these networks, such as `10.0.0.0/8`, `2001:db8::/32` or a single address.
    ///
    /// # Errors
    /// [`IpNetworkError`] if one of them is not a network.
    pub fn trust<'n>(networks: impl IntoIterator<Item = &'n str>) -> Result<ForwardedFor, IpNetworkError> {
        networks.into_iter().map(str::parse).collect()
    }

    /// Whether an address is that of a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// The address of the client behind a peer. `forwarded` are the values of `X-Forwarded-For` in the order they were
    /// sent. If an entry of a trusted proxy cannot be read, that proxy is the client.
    pub fn client<'h>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'h [u8]>) -> IpAddr {
        let mut client = peer.to_canonical();
        if !self.trusts(client) {
            return client;
        }
        for hop in forwarded.rev().flat_map(|value| value.rsplit(|byte| *byte == b',')) {
            let hop = hop.trim_ascii();
            if hop.is_empty() {
                continue;
            }
            match hop_address(hop) {
                Some(address) => client = address,
                None => return client,
            }
            if !self.trusts(client) {
                return client;
            }
        }
        client
    }
}

impl FromIterator<IpNetwork> for ForwardedFor {
    fn from_iter<I: IntoIterator<Item = IpNetwork>>(networks: I) -> ForwardedFor {
        ForwardedFor { trusted: networks.into_iter().collect() }
    }
}

impl ClientAddress for ForwardedFor {
    fn address(&self, headers: &::http::HeaderMap, peer: Option<IpAddr>) -> Option<IpAddr> {
        let peer = peer?;
        let values = headers.get_all("x-forwarded-for").iter().map(::http::HeaderValue::as_bytes);
        Some(self.client(peer, values))
    }
}

/// An address as proxies write it: alone, with a port, or in brackets.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip().to_canonical());
    }
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    inside.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

impl RequestLimits {
    /// One unit of this limit for the client of an HTTP request, by [`address_key`].
    ///
    /// If the peer's address is not known, the request has no key. A per-key limit rejects it then: clients never share
    /// a key.
    ///
    /// ```
    /// use tidegate::layer::RequestLimits;
    /// use tidegate::layer::http::{self, ForwardedFor, HttpLimitLayer};
    /// # fn layer(limiter: tidegate::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    ///
    /// let proxies = ForwardedFor::trust(["10.0.0.0/8"])?;
    /// let layer: HttpLimitLayer<String, String> = http::limit(limiter, move |request| {
    ///     let limits = RequestLimits::of_client("client", &proxies, request);
    ///     match request.headers().get("api-key") {
    ///         Some(key) => limits.and("api", key.as_bytes()),
    ///         None => limits,
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_client<B>(
        limit_id: impl Into<Cow<'static, str>>,
        client: &impl ClientAddress,
        request: &Request<B>,
    ) -> RequestLimits {
        match client.address(request.headers(), peer_of(request.extensions())) {
            Some(address) => RequestLimits::of(limit_id, address_key(address)),
            None => RequestLimits::without_key(limit_id),
        }
    }
}

/// The peer's address, as the server reported it.
fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    extensions.get::<PeerAddress>().map(|peer| peer.0.ip())
}
