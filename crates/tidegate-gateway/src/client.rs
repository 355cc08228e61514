//! Who a client is: the peer, or whoever a trusted proxy says.
//!
//! ```text
//!   X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7      peer 10.0.0.1       trusted: 10.0.0.0/8
//!                    anybody  ▲ the client  trusted ◀──── trusted
//!                    can say
//! ```
//!
//! What a trusted proxy appended is believed, and nothing to the left of the first address that is not trusted. IPv4 inside IPv6 is
//! IPv4; IPv6 clients are their /64, because one household has as many addresses as it likes.

mod proxy;

use std::net::IpAddr;

use crate::settings::{GatewayServer, Network};
use arrayvec::ArrayVec;

pub use proxy::{Header, HeaderError, LONGEST_V1, LONGEST_V2, parse_proxy_header};

/// The longest value of a header that is a client; who sends a longer one is known by the address.
pub const LONGEST_NAME: usize = 128;

/// What stands before the bytes of each kind of client, so that no kind can be taken for another.
pub(crate) const V4: u8 = b'4';
pub(crate) const V6: u8 = b'6';
pub(crate) const NAMED: u8 = b'n';

/// The bytes a client is counted under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientKey(ArrayVec<u8, { LONGEST_NAME + 1 }>);

impl ClientKey {
    /// The client at an address.
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

    /// The client of this name; `None` if it is empty or longer than [`LONGEST_NAME`].
    pub fn of_name(name: &[u8]) -> Option<ClientKey> {
        let name = name.trim_ascii();
        if name.is_empty() || name.len() > LONGEST_NAME {
            return None;
        }
        Some(ClientKey(std::iter::once(NAMED).chain(name.iter().copied()).collect()))
    }

    /// The name, if it is a name's.
    pub fn name(&self) -> Option<&[u8]> {
        self.0.strip_prefix(&[NAMED])
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ClientKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// How clients are told apart.
#[derive(Debug, Clone, Default)]
pub struct Clients {
    trusted: Vec<Network>,
}

impl Clients {
    /// As a gateway's file says.
    pub fn new(server: &GatewayServer) -> Clients {
        Clients { trusted: server.trusted_proxies.clone() }
    }

    /// Whether the word of whoever is at this address is believed.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// The address of the client behind a peer. `forwarded` are the values of `X-Forwarded-For`, in the order they were sent.
    ///
    /// If what a trusted proxy says cannot be read, the proxy itself is the client: nobody gets away by confusing it.
    pub fn address<'h>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'h [u8]>) -> IpAddr {
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

/// An address as proxies write it: alone, with a port, in brackets.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    if let Ok(address) = text.parse::<std::net::SocketAddr>() {
        return Some(address.ip().to_canonical());
    }
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    inside.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}
