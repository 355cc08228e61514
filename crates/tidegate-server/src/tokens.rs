//! Tokens: authentication and permissions for both protocols.
//!
//! A token has 256 random bits. The settings file contains only its SHA-256, so reading the file does not reveal tokens. With that
//! many random bits a plain hash suffices; a slow one would only slow down requests.
//!
//! A lookup compares the hash with every known one in constant time, so its duration reveals nothing about near misses.
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
//! let tokens = TokenTable::new(vec![shop]).expect("a valid token");
//! let Caller::Authenticated(permissions) = tokens.identify(Some(new.secret.as_bytes())) else { panic!("a known token") };
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
use tidegate::model::SpecError;

/// Prefix of all tokens, so that people and secret scanners recognize them.
const TOKEN_PREFIX: &str = "tg_";
/// Random bytes of a token.
const RANDOM_BYTES: usize = 32;
/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// What a caller may do, and on which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// The role.
    pub role: Role,
    /// Prefix of the ids of permitted limits; empty for all.
    pub prefix: String,
}

impl Permissions {
    /// All permissions, for servers without tokens.
    pub fn all() -> Permissions {
        Permissions { role: Role::Admin, prefix: String::new() }
    }

    /// Whether the role includes this one.
    pub fn allows(&self, needed: Role) -> bool {
        self.role >= needed
    }

    /// Whether the prefix covers this limit.
    pub fn covers(&self, limit_id: &str) -> bool {
        limit_id.starts_with(&self.prefix)
    }
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// No token, or an invalid one.
    Anonymous,
    /// A valid token with these permissions.
    Authenticated(Permissions),
}

impl Caller {
    /// The permissions, if authenticated.
    pub fn permissions(self) -> Option<Permissions> {
        match self {
            Caller::Authenticated(permissions) => Some(permissions),
            Caller::Anonymous => None,
        }
    }
}

/// The hash of a token: enough to check it again later, not enough to use it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenHash([u8; HASH_BYTES]);

impl TokenHash {
    /// The hash of this token.
    pub fn of(token: &[u8]) -> TokenHash {
        TokenHash(hash(token))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

/// The valid tokens.
#[derive(Debug, Clone)]
pub struct TokenTable {
    requirement: TokenRequirement,
    known: Vec<KnownToken>,
}

/// Whether callers need a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenRequirement {
    /// Callers without a token may do everything.
    Optional,
    /// Callers need a token.
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
    /// No tokens are required; every caller may do everything.
    pub fn allow_all() -> TokenTable {
        TokenTable { requirement: TokenRequirement::Optional, known: Vec::new() }
    }

    /// Tokens are required, and none is valid.
    pub fn deny_all() -> TokenTable {
        TokenTable { requirement: TokenRequirement::Required, known: Vec::new() }
    }

    /// These tokens are valid, or all errors in them. An empty list admits no caller.
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

    /// The caller with this token.
    pub fn identify(&self, token: Option<&[u8]>) -> Caller {
        match (self.requirement, token) {
            (TokenRequirement::Optional, _) => Caller::Authenticated(Permissions::all()),
            (TokenRequirement::Required, None) => Caller::Anonymous,
            (TokenRequirement::Required, Some(token)) => self.find(&hash(token)),
        }
    }

    /// The caller with this token hash.
    pub fn identify_hash(&self, token_hash: &TokenHash) -> Caller {
        match self.requirement {
            TokenRequirement::Optional => Caller::Authenticated(Permissions::all()),
            TokenRequirement::Required => self.find(&token_hash.0),
        }
    }

    /// Whether callers need a token.
    pub fn are_required(&self) -> bool {
        self.requirement == TokenRequirement::Required
    }

    /// The caller with this `Authorization` header: `Bearer` and the token.
    pub fn identify_bearer(&self, authorization: Option<&[u8]>) -> Caller {
        self.identify(authorization.and_then(bearer))
    }

    fn find(&self, hash: &[u8; HASH_BYTES]) -> Caller {
        // All hashes are compared, and the match is selected without a branch.
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

/// The token of an `Authorization` header; the scheme is case-insensitive.
pub(crate) fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty())
}

/// A new token.
#[derive(Clone)]
pub struct NewToken {
    /// The secret, for its holder only.
    pub secret: String,
    /// The hash, for the settings file.
    pub sha256: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}

impl NewToken {
    /// Generates a token from the system's randomness.
    pub fn generate() -> Result<NewToken, RandomnessError> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|_| RandomnessError)?;
        let secret = format!("{TOKEN_PREFIX}{}", hex(&random));
        let sha256 = hex(&hash(secret.as_bytes()));
        Ok(NewToken { secret, sha256 })
    }
}

/// The system provides no randomness.
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
    fn hash_is_sha256() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&hash(b"abc")), known);
        assert_eq!(from_hex(known), Some(hash(b"abc")));
        assert_eq!(from_hex(&known.to_uppercase()), Some(hash(b"abc")));
    }

    #[test]
    fn token_gives_its_own_permissions() {
        let specs = vec![
            spec("one", Role::Read, ""),
            spec("two", Role::Decide, "shop/"),
            spec("three", Role::Admin, ""),
        ];
        let tokens = TokenTable::new(specs).expect("valid tokens");
        assert_eq!(tokens.identify(Some(b"one")), authenticated(Role::Read, ""));
        assert_eq!(tokens.identify(Some(b"two")), authenticated(Role::Decide, "shop/"));
        assert_eq!(tokens.identify(Some(b"three")), authenticated(Role::Admin, ""));
        for wrong in [&b"four"[..], b"", b"one ", b"ONE"] {
            assert_eq!(tokens.identify(Some(wrong)), Caller::Anonymous);
        }
        assert_eq!(tokens.identify(None), Caller::Anonymous);
    }

    #[test]
    fn no_tokens_differs_from_an_empty_list() {
        assert_eq!(TokenTable::allow_all().identify(None), Caller::Authenticated(Permissions::all()));
        let nobody = TokenTable::new(Vec::new()).expect("a valid list");
        assert_eq!(nobody.identify(Some(b"one")), Caller::Anonymous);
        assert_eq!(nobody.identify(None), Caller::Anonymous);
    }

    #[test]
    fn authorization_header_is_bearer_and_the_token() {
        let tokens = TokenTable::new(vec![spec("one", Role::Read, "")]).expect("a valid token");
        for right in [&b"Bearer one"[..], b"bearer one", b"BEARER  one "] {
            assert_eq!(tokens.identify_bearer(Some(right)), authenticated(Role::Read, ""));
        }
        for wrong in [&b"one"[..], b"Basic one", b"Bearer", b"Bearer ", b"Bearerone", b""] {
            assert_eq!(tokens.identify_bearer(Some(wrong)), Caller::Anonymous, "{wrong:?}");
        }
    }

    #[test]
    fn invalid_hashes_are_all_reported() {
        let bad = |sha256: &str| TokenSpec { sha256: sha256.to_owned(), ..spec("x", Role::Read, "") };
        let long = "0".repeat(66);
        let specs = vec![bad("12"), spec("x", Role::Read, ""), bad(&long), spec("x", Role::Admin, "")];
        let flaws = TokenTable::new(specs).expect_err("three are wrong");
        let fields: Vec<_> = flaws.iter().map(|flaw| flaw.field.as_str()).collect();
        assert_eq!(fields, ["tokens[0].sha256", "tokens[2].sha256", "tokens[3].sha256"]);
    }

    #[test]
    fn generated_tokens_are_long_and_distinct() {
        let (one, two) =
            (NewToken::generate().expect("randomness"), NewToken::generate().expect("randomness"));
        assert_ne!(one.secret, two.secret);
        assert_eq!(one.secret.len(), TOKEN_PREFIX.len() + 2 * RANDOM_BYTES);
        assert!(!format!("{one:?}").contains(&one.secret), "a secret is not for logs");
    }

    #[test]
    fn roles_include_lower_ones() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            let permissions = Permissions { role, prefix: String::new() };
            let allowed: Vec<_> =
                Role::ALL.into_iter().filter(|needed| permissions.allows(*needed)).collect();
            assert_eq!(allowed, Role::ALL[..=index]);
        }
    }
}
