//! Identifies the client of a request: the peer address, or the address that a trusted proxy reports.
//!
//! ```text
//!   X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7      peer 10.0.0.1       trusted: 10.0.0.0/8
//!                    forgeable ▲ the client  trusted ◀── trusted
//! ```
//!
//! [`client_address`] reads the addresses from the right. Nothing to the left of the first untrusted address is used, because
//! any client can forge it. IPv4-mapped IPv6 addresses count as IPv4. An IPv6 client is its /64, because one household controls a whole /64.

mod proxy_header;

use std::net::IpAddr;

use crate::settings::{GatewayServer, Network};
use arrayvec::ArrayVec;
use tidegate::layer::http::client_address;

pub use proxy_header::{MAX_V1_BYTES, MAX_V2_BYTES, ProxyHeader, ProxyHeaderError, parse_proxy_header};

/// The maximum length of a client name. A request with a longer name is identified by its address.
pub const MAX_NAME_BYTES: usize = 128;

/// The first byte of a key tells its kind, so that keys of different kinds never collide.
pub(crate) const V4: u8 = b'4';
pub(crate) const V6: u8 = b'6';
pub(crate) const NAMED: u8 = b'n';

/// The key under which a client is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientKey(ArrayVec<u8, { MAX_NAME_BYTES + 1 }>);

impl ClientKey {
    /// The key of an address.
    pub fn of_address(address: IpAddr) -> ClientKey {
        let mut key = ArrayVec::new();
        let network: &[u8] = match address.to_canonical() {
            IpAddr::V4(address) => {
                key.push(V4);
                &address.octets()
            }
            IpAddr::V6(address) => {
                key.push(V6);
                &address.octets()[..8]
            }
        };
        key.extend(network.iter().copied());
        ClientKey(key)
    }

    /// The key of a name. `None` if the name is empty or longer than [`MAX_NAME_BYTES`].
    pub fn of_name(name: &[u8]) -> Option<ClientKey> {
        let name = name.trim_ascii();
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return None;
        }
        Some(ClientKey(std::iter::once(NAMED).chain(name.iter().copied()).collect()))
    }

    /// The name, if the key is one of a name.
    pub fn name(&self) -> Option<&[u8]> {
        self.0.strip_prefix(&[NAMED])
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ClientKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Resolves client addresses with the list of trusted proxies.
#[derive(Debug, Clone, Default)]
pub struct ClientResolver {
    trusted: Vec<Network>,
}

impl ClientResolver {
    /// Creates a resolver for the configured trusted proxies.
    pub fn new(server: &GatewayServer) -> ClientResolver {
        ClientResolver { trusted: server.trusted_proxies.clone() }
    }

    /// Whether this address belongs to a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// The address of the client behind a peer. `forwarded` holds the values of `X-Forwarded-For` in the order they were sent.
    ///
    /// If an entry from a trusted proxy cannot be parsed, that proxy is the client. A malformed header does not hide a client.
    pub fn address<'h>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'h [u8]>) -> IpAddr {
        client_address(peer, |address| self.trusts(address), forwarded)
    }
}
