//! Keys under which clients are counted: by address or by name.
//!
//! The address of a client is [`ForwardedFor`](tidegate::layer::http::ForwardedFor)'s. IPv4-mapped IPv6 addresses count as IPv4. An IPv6
//! client is its /64, because one household controls a whole /64.

use std::net::IpAddr;

use arrayvec::ArrayVec;

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
