//! Tokens: who may do what, on every door.
//!
//! A token is 256 random bits. The settings file knows only its SHA-256, so that whoever reads the file cannot use it;
//! with that many random bits a plain hash is enough, and a slow one would only slow down every request.
//!
//! A token is looked up by comparing its hash with every known one, each in constant time and none left out: how long
//! that takes says nothing about which of them was nearly right.
//!
//! ```
//! use tidegate_server::tokens::{NewToken, Pass, Role, TokenSpec, Tokens, Who};
//!
//! let new = NewToken::make()?;
//! let shop = TokenSpec {
//!     name: "shop".to_owned(),
//!     sha256: new.sha256.clone(),
//!     role: Role::Decide,
//!     prefix: "shop/".to_owned(),
//! };
//! let tokens = Tokens::new(vec![shop]).expect("it makes sense");
//! let Who::Known(pass) = tokens.who(Some(new.secret.as_bytes())) else { panic!("it was just made") };
//! assert!(pass.may(Role::Decide) && pass.covers("shop/checkout"));
//! assert!(!pass.may(Role::Admin) && !pass.covers("bank"));
//! assert_eq!(tokens.who(Some(b"guess")), Who::Stranger);
//! # Ok::<(), tidegate_server::tokens::NoRandomness>(())
//! ```

mod shared;

use std::fmt;

pub use crate::settings::{Role, TokenSpec};
use sha2::{Digest, Sha256};
pub use shared::SharedTokens;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tidegate::SpecError;

/// What every token begins with, so that people and scanners of leaked secrets know one when they see it.
const MARK: &str = "tg_";
/// How many random bytes a token has.
const RANDOM_BYTES: usize = 32;
/// How many bytes a hash has.
const HASH_BYTES: usize = 32;

/// What somebody may do, and to which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// How much.
    pub role: Role,
    /// What the ids of the limits begin with; empty for all limits.
    pub prefix: String,
}

impl Pass {
    /// Everything: where nobody asks for tokens.
    pub fn everything() -> Pass {
        Pass { role: Role::Admin, prefix: String::new() }
    }

    /// Whether it is enough for this.
    pub fn may(&self, needed: Role) -> bool {
        self.role >= needed
    }

    /// Whether it is for this limit.
    pub fn covers(&self, limit_id: &str) -> bool {
        limit_id.starts_with(&self.prefix)
    }
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// Somebody without a token, or with one that nobody knows.
    Stranger,
    /// Somebody who may do this.
    Known(Pass),
}

impl Who {
    /// What they may do, if anybody knows them.
    pub fn pass(self) -> Option<Pass> {
        match self {
            Who::Known(pass) => Some(pass),
            Who::Stranger => None,
        }
    }
}

/// What is kept of a token that somebody has shown: enough to ask again what it allows, and not enough to show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown([u8; HASH_BYTES]);

impl Shown {
    /// What is kept of this token.
    pub fn of(token: &[u8]) -> Shown {
        Shown(hash(token))
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

/// The tokens that are known.
#[derive(Debug, Clone)]
pub struct Tokens {
    demand: Demand,
    known: Vec<Known>,
}

/// Whether callers need a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// They may do everything without.
    None,
    /// They do.
    Token,
}

#[derive(Clone)]
struct Known {
    hash: [u8; HASH_BYTES],
    pass: Pass,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("pass", &self.pass).finish_non_exhaustive()
    }
}

impl Tokens {
    /// No tokens are asked for; everybody may do everything.
    pub fn not_needed() -> Tokens {
        Tokens { demand: Demand::None, known: Vec::new() }
    }

    /// Nobody has a token, and everybody needs one.
    pub fn nobody() -> Tokens {
        Tokens { demand: Demand::Token, known: Vec::new() }
    }

    /// These tokens and no others; or everything that is wrong with them. An empty list lets nobody in.
    pub fn new(specs: Vec<TokenSpec>) -> Result<Tokens, Vec<SpecError>> {
        let mut known: Vec<Known> = Vec::with_capacity(specs.len());
        let mut flaws = Vec::new();
        for (index, spec) in specs.into_iter().enumerate() {
            let mut refuse =
                |message: &str| flaws.push(SpecError::new(format!("tokens[{index}].sha256"), message));
            match from_hex(&spec.sha256) {
                None => refuse("must be 64 hexadecimal digits, as `tidegate token new` prints them"),
                Some(hash) if known.iter().any(|other| other.hash == hash) => {
                    refuse("is the hash of an earlier token; every token is written once");
                }
                Some(hash) => {
                    known.push(Known { hash, pass: Pass { role: spec.role, prefix: spec.prefix } });
                }
            }
        }
        if flaws.is_empty() { Ok(Tokens { demand: Demand::Token, known }) } else { Err(flaws) }
    }

    /// Who calls with this token.
    pub fn who(&self, token: Option<&[u8]>) -> Who {
        match (self.demand, token) {
            (Demand::None, _) => Who::Known(Pass::everything()),
            (Demand::Token, None) => Who::Stranger,
            (Demand::Token, Some(token)) => self.holder(&hash(token)),
        }
    }

    /// Who calls that has shown this before.
    pub fn who_showed(&self, shown: &Shown) -> Who {
        match self.demand {
            Demand::None => Who::Known(Pass::everything()),
            Demand::Token => self.holder(&shown.0),
        }
    }

    /// Whether callers need one.
    pub fn are_needed(&self) -> bool {
        self.demand == Demand::Token
    }

    /// Who calls with this `Authorization` field: `Bearer` and the token.
    pub fn who_says(&self, authorization: Option<&[u8]>) -> Who {
        self.who(authorization.and_then(bearer))
    }

    fn holder(&self, hash: &[u8; HASH_BYTES]) -> Who {
        // Every token is compared, and which one it was is chosen without a branch.
        let mut found = Choice::from(0);
        let mut place = 0_u64;
        for (index, known) in (0_u64..).zip(&self.known) {
            let same = known.hash.ct_eq(hash);
            place.conditional_assign(&index, same);
            found |= same;
        }
        let pass = usize::try_from(place).ok().and_then(|place| self.known.get(place));
        match pass {
            Some(known) if bool::from(found) => Who::Known(known.pass.clone()),
            _ => Who::Stranger,
        }
    }
}

/// The token of an `Authorization` field; the scheme's case does not matter.
pub(crate) fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty())
}

/// A token that was just made.
#[derive(Clone)]
pub struct NewToken {
    /// What its holder keeps, and nobody else.
    pub secret: String,
    /// What the settings file knows of it.
    pub sha256: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}

impl NewToken {
    /// Makes a token out of the system's randomness.
    pub fn make() -> Result<NewToken, NoRandomness> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|_| NoRandomness)?;
        let secret = format!("{MARK}{}", hex(&random));
        let sha256 = hex(&hash(secret.as_bytes()));
        Ok(NewToken { secret, sha256 })
    }
}

/// The system has no randomness to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRandomness;

impl fmt::Display for NoRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no randomness to make a token of")
    }
}

impl std::error::Error for NoRandomness {}

fn hash(token: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(token).into()
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex(text: &str) -> Option<[u8; HASH_BYTES]> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|letter| letter.to_digit(16).and_then(|value| u8::try_from(value).ok())).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect();
    if text.len() == 2 * HASH_BYTES { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(secret: &str, role: Role, prefix: &str) -> TokenSpec {
        let sha256 = hex(&hash(secret.as_bytes()));
        TokenSpec { name: "t".to_owned(), sha256, role, prefix: prefix.to_owned() }
    }

    fn passed(role: Role, prefix: &str) -> Who {
        Who::Known(Pass { role, prefix: prefix.to_owned() })
    }

    #[test]
    fn the_hash_is_the_one_everybody_computes() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&hash(b"abc")), known);
        assert_eq!(from_hex(known), Some(hash(b"abc")));
        assert_eq!(from_hex(&known.to_uppercase()), Some(hash(b"abc")));
    }

    #[test]
    fn every_token_has_its_own_pass() {
        let specs = vec![
            spec("one", Role::Read, ""),
            spec("two", Role::Decide, "shop/"),
            spec("three", Role::Admin, ""),
        ];
        let tokens = Tokens::new(specs).expect("they make sense");
        assert_eq!(tokens.who(Some(b"one")), passed(Role::Read, ""));
        assert_eq!(tokens.who(Some(b"two")), passed(Role::Decide, "shop/"));
        assert_eq!(tokens.who(Some(b"three")), passed(Role::Admin, ""));
        for wrong in [&b"four"[..], b"", b"one ", b"ONE"] {
            assert_eq!(tokens.who(Some(wrong)), Who::Stranger);
        }
        assert_eq!(tokens.who(None), Who::Stranger);
    }

    #[test]
    fn no_tokens_is_not_the_same_as_an_empty_list() {
        assert_eq!(Tokens::not_needed().who(None), Who::Known(Pass::everything()));
        let nobody = Tokens::new(Vec::new()).expect("it makes sense");
        assert_eq!(nobody.who(Some(b"one")), Who::Stranger);
        assert_eq!(nobody.who(None), Who::Stranger);
    }

    #[test]
    fn the_field_is_bearer_and_the_token() {
        let tokens = Tokens::new(vec![spec("one", Role::Read, "")]).expect("it makes sense");
        for right in [&b"Bearer one"[..], b"bearer one", b"BEARER  one "] {
            assert_eq!(tokens.who_says(Some(right)), passed(Role::Read, ""));
        }
        for wrong in [&b"one"[..], b"Basic one", b"Bearer", b"Bearer ", b"Bearerone", b""] {
            assert_eq!(tokens.who_says(Some(wrong)), Who::Stranger, "{wrong:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let bad = |sha256: &str| TokenSpec { sha256: sha256.to_owned(), ..spec("x", Role::Read, "") };
        let long = "0".repeat(66);
        let specs = vec![bad("12"), spec("x", Role::Read, ""), bad(&long), spec("x", Role::Admin, "")];
        let flaws = Tokens::new(specs).expect_err("three are wrong");
        let fields: Vec<_> = flaws.iter().map(|flaw| flaw.field.as_str()).collect();
        assert_eq!(fields, ["tokens[0].sha256", "tokens[2].sha256", "tokens[3].sha256"]);
    }

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, two) = (NewToken::make().expect("randomness"), NewToken::make().expect("randomness"));
        assert_ne!(one.secret, two.secret);
        assert_eq!(one.secret.len(), MARK.len() + 2 * RANDOM_BYTES);
        assert!(!format!("{one:?}").contains(&one.secret), "a secret is not for logs");
    }

    #[test]
    fn roles_include_the_ones_before() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            let pass = Pass { role, prefix: String::new() };
            let allowed: Vec<_> = Role::ALL.into_iter().filter(|needed| pass.may(*needed)).collect();
            assert_eq!(allowed, Role::ALL[..=index]);
        }
    }
}
