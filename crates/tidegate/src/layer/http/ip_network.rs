//! A network of addresses, such as the proxies that a server trusts.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address and the length of its prefix, such as `10.0.0.0/8`. A single address is a network of its own.
///
/// IPv4 addresses and networks inside IPv6 count as IPv4.
///
/// ```
/// use tidegate::layer::http::IpNetwork;
///
/// let network: IpNetwork = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse()?));
/// assert!(network.contains("::ffff:10.1.2.3".parse()?));
/// assert!("10.0.0.1/8".parse::<IpNetwork>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u32,
}

impl IpNetwork {
    /// Whether the network contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && masked(address, self.bits) == masked(self.address, self.bits)
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<IpNetwork, IpNetworkError> {
        let refuse = |reason| Err(IpNetworkError { network: text.to_owned(), reason });
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return refuse("must be an address and the number of bits that count");
        };
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => match bits.parse() {
                Ok(bits) if bits <= most => bits,
                _ => return refuse("has more bits than an address"),
            },
            Some(_) => return refuse("must have a whole number behind its slash"),
        };
        if masked(address, bits) != masked(address, most) {
            return refuse("has bits set behind those that count");
        }
        Ok(match (address, address.to_canonical()) {
            (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if bits >= 96 => {
                IpNetwork { address: canonical, bits: bits - 96 }
            }
            _ => IpNetwork { address, bits },
        })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// The prefix of an address.
fn masked(address: IpAddr, bits: u32) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0)),
        IpAddr::V6(address) => address.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0),
    }
}

/// A text that is not a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpNetworkError {
    network: String,
    reason: &'static str,
}

impl IpNetworkError {
    /// What is wrong with the text, without the text.
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

impl fmt::Display for IpNetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IpNetworkError { network, reason } = self;
        write!(f, "'{network}' {reason}; write a network such as 10.0.0.0/8 or fd00::/8")
    }
}

impl std::error::Error for IpNetworkError {}
