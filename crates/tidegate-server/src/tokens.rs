//! TokenTable: who may do what, on every door.
//!
//! A token is 256 random bits. The settings file knows only its SHA-256, so that whoever reads the file cannot use it;
//! with that many random bits a plain hash is enough, and a slow one would only slow down every request.
//!
//! A token is looked up by comparing its hash with every known one, each in constant time and none left out: how long
//! that takes says nothing about which of them was nearly right.
//!
//! ```
//! use tidegate_server::tokens::{NewToken, Permissions, Role, TokenSpec, TokenTable, Caller};
//!
//! let new = NewToken::generate()?;
//! let shop = TokenSpec {
//!     name: "shop".to_owned(),
//!     sha256: new.sha256.clone(),
//!     role: Role::Decide,
//!     prefix: "shop/".to_owned(),
//! };
//! let tokens = TokenTable::new(vec![shop]).expect("it makes sense");
//! let Caller::Authenticated(permissions) = tokens.identify(Some(new.secret.as_bytes())) else { panic!("it was just made") };
//! assert!(permissions.allows(Role::Decide) && permissions.covers("shop/checkout"));
//! assert!(!permissions.allows(Role::Admin) && !permissions.covers("bank"));
//! assert_eq!(tokens.identify(Some(b"guess")), Caller::Anonymous);
//! # Ok::<(), tidegate_server::tokens::RandomnessError>(())
//! ```

mod authenticator;
mod shared_tokens;

use std::fmt;

pub use crate::settings::{Role, TokenSpec};
pub use authenticator::Authenticator;
use sha2::{Digest, Sha256};
pub use shared_tokens::SharedTokens;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tidegate::SpecError;

/// What every token begins with, so that people and scanners of leaked secrets know one when they see it.
const TOKEN_PREFIX: &str = "tg_";
/// How many random bytes a token has.
const RANDOM_BYTES: usize = 32;
/// How many bytes a hash has.
const HASH_BYTES: usize = 32;

/// What somebody may do, and to which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// How much.
    pub role: Role,
    /// What the ids of the limits begin with; empty for all limits.
    pub prefix: String,
}

impl Permissions {
    /// Everything: where nobody asks for tokens.
    pub fn all() -> Permissions {
        Permissions { role: Role::Admin, prefix: String::new() }
    }

    /// Whether it is enough for this.
    pub fn allows(&self, needed: Role) -> bool {
        self.role >= needed
    }

    /// Whether it is for this limit.
    pub fn covers(&self, limit_id: &str) -> bool {
        limit_id.starts_with(&self.prefix)
    }
}

/// Caller calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Somebody without a token, or with one that nobody knows.
    Anonymous,
    /// Somebody who may do this.
    Authenticated(Permissions),
}

impl Caller {
    /// What they may do, if anybody knows them.
    pub fn permissions(self) -> Option<Permissions> {
        match self {
            Caller::Authenticated(permissions) => Some(permissions),
            Caller::Anonymous => None,
        }
    }
}

/// What is pending_input of a token that somebody has token_hash: enough to ask again what it allows, and not enough to show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenHash([u8; HASH_BYTES]);

impl TokenHash {
    /// What is pending_input of this token.
    pub fn of(token: &[u8]) -> TokenHash {
        TokenHash(hash(token))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

/// The tokens that are known.
#[derive(Debug, Clone)]
pub struct TokenTable {
    requirement: TokenRequirement,
    known: Vec<KnownToken>,
}

/// Whether callers need a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenRequirement {
    /// They may do everything without.
    Optional,
    /// They do.
    Required,
}

#[derive(Clone)]
struct KnownToken {
    hash: [u8; HASH_BYTES],
    permissions: Permissions,
}

impl fmt::Debug for KnownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownToken").field("permissions", &self.permissions).finish_non_exhaustive()
    }
}

impl TokenTable {
    /// No tokens are asked for; everybody may do everything.
    pub fn allow_all() -> TokenTable {
        TokenTable { requirement: TokenRequirement::Optional, known: Vec::new() }
    }

    /// Nobody has a token, and everybody needs one.
    pub fn deny_all() -> TokenTable {
        TokenTable { requirement: TokenRequirement::Required, known: Vec::new() }
    }

    /// These tokens and no others; or everything that is wrong with them. An empty list lets nobody in.
    pub fn new(specs: Vec<TokenSpec>) -> Result<TokenTable, Vec<SpecError>> {
        let mut known: Vec<KnownToken> = Vec::with_capacity(specs.len());
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
                    known.push(KnownToken {
                        hash,
                        permissions: Permissions { role: spec.role, prefix: spec.prefix },
                    });
                }
            }
        }
        if flaws.is_empty() {
            Ok(TokenTable { requirement: TokenRequirement::Required, known })
        } else {
            Err(flaws)
        }
    }

    /// Caller calls with this token.
    pub fn identify(&self, token: Option<&[u8]>) -> Caller {
        match (self.requirement, token) {
            (TokenRequirement::Optional, _) => Caller::Authenticated(Permissions::all()),
            (TokenRequirement::Required, None) => Caller::Anonymous,
            (TokenRequirement::Required, Some(token)) => self.find(&hash(token)),
        }
    }

    /// Caller calls that has token_hash this before.
    pub fn identify_hash(&self, token_hash: &TokenHash) -> Caller {
        match self.requirement {
            TokenRequirement::Optional => Caller::Authenticated(Permissions::all()),
            TokenRequirement::Required => self.find(&token_hash.0),
        }
    }

    /// Whether callers need one.
    pub fn are_required(&self) -> bool {
        self.requirement == TokenRequirement::Required
    }

    /// Caller calls with this `Authorization` field: `Bearer` and the token.
    pub fn identify_bearer(&self, authorization: Option<&[u8]>) -> Caller {
        self.identify(authorization.and_then(bearer))
    }

    fn find(&self, hash: &[u8; HASH_BYTES]) -> Caller {
        // Every token is compared, and which one it was is chosen without a branch.
        let mut found = Choice::from(0);
        let mut position = 0_u64;
        for (index, known) in (0_u64..).zip(&self.known) {
            let same = known.hash.ct_eq(hash);
            position.conditional_assign(&index, same);
            found |= same;
        }
        let known = usize::try_from(position).ok().and_then(|position| self.known.get(position));
        match known {
            Some(known) if bool::from(found) => Caller::Authenticated(known.permissions.clone()),
            _ => Caller::Anonymous,
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
    pub fn generate() -> Result<NewToken, RandomnessError> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|_| RandomnessError)?;
        let secret = format!("{TOKEN_PREFIX}{}", hex(&random));
        let sha256 = hex(&hash(secret.as_bytes()));
        Ok(NewToken { secret, sha256 })
    }
}

/// The system has no randomness to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomnessError;

impl fmt::Display for RandomnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no randomness to make a token of")
    }
}

impl std::error::Error for RandomnessError {}

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

    fn authenticated(role: Role, prefix: &str) -> Caller {
        Caller::Authenticated(Permissions { role, prefix: prefix.to_owned() })
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
        let tokens = TokenTable::new(specs).expect("they make sense");
        assert_eq!(tokens.identify(Some(b"one")), authenticated(Role::Read, ""));
        assert_eq!(tokens.identify(Some(b"two")), authenticated(Role::Decide, "shop/"));
        assert_eq!(tokens.identify(Some(b"three")), authenticated(Role::Admin, ""));
        for wrong in [&b"four"[..], b"", b"one ", b"ONE"] {
            assert_eq!(tokens.identify(Some(wrong)), Caller::Anonymous);
        }
        assert_eq!(tokens.identify(None), Caller::Anonymous);
    }

    #[test]
    fn no_tokens_is_not_the_same_as_an_empty_list() {
        assert_eq!(TokenTable::allow_all().identify(None), Caller::Authenticated(Permissions::all()));
        let nobody = TokenTable::new(Vec::new()).expect("it makes sense");
        assert_eq!(nobody.identify(Some(b"one")), Caller::Anonymous);
        assert_eq!(nobody.identify(None), Caller::Anonymous);
    }

    #[test]
    fn the_field_is_bearer_and_the_token() {
        let tokens = TokenTable::new(vec![spec("one", Role::Read, "")]).expect("it makes sense");
        for right in [&b"Bearer one"[..], b"bearer one", b"BEARER  one "] {
            assert_eq!(tokens.identify_bearer(Some(right)), authenticated(Role::Read, ""));
        }
        for wrong in [&b"one"[..], b"Basic one", b"Bearer", b"Bearer ", b"Bearerone", b""] {
            assert_eq!(tokens.identify_bearer(Some(wrong)), Caller::Anonymous, "{wrong:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let bad = |sha256: &str| TokenSpec { sha256: sha256.to_owned(), ..spec("x", Role::Read, "") };
        let long = "0".repeat(66);
        let specs = vec![bad("12"), spec("x", Role::Read, ""), bad(&long), spec("x", Role::Admin, "")];
        let flaws = TokenTable::new(specs).expect_err("three are wrong");
        let fields: Vec<_> = flaws.iter().map(|flaw| flaw.field.as_str()).collect();
        assert_eq!(fields, ["tokens[0].sha256", "tokens[2].sha256", "tokens[3].sha256"]);
    }

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, two) =
            (NewToken::generate().expect("randomness"), NewToken::generate().expect("randomness"));
        assert_ne!(one.secret, two.secret);
        assert_eq!(one.secret.len(), TOKEN_PREFIX.len() + 2 * RANDOM_BYTES);
        assert!(!format!("{one:?}").contains(&one.secret), "a secret is not for logs");
    }

    #[test]
    fn roles_include_the_ones_before() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            let permissions = Permissions { role, prefix: String::new() };
            let allowed: Vec<_> =
                Role::ALL.into_iter().filter(|needed| permissions.allows(*needed)).collect();
            assert_eq!(allowed, Role::ALL[..=index]);
        }
    }
}
