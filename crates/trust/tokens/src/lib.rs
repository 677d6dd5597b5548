//! Tokens of end users: JSON Web Tokens (RFC 7519), verified by the keys of their issuers (RFC 7517).
//!
//! Used where a token is judged: by the control plane for users of an identity provider, by servers and gateways for the callers of a
//! service. It fetches no keys, and no error has anything of a token.
//!
//! Opaque tokens, which need a request to their issuer for each call, were rejected: no call may wait for another company's
//! service.

mod claims;
mod issuers;
mod key_set;

use std::fmt;

use fairmesh_model::MAX_TOKEN;
pub use jsonwebtoken::{Algorithm, DecodingKey};
use jsonwebtoken::{TokenData, Validation, decode, decode_header};
use serde_json::{Map, Value};

pub use claims::{LEEWAY, is_for, valid_until};
pub use issuers::Issuers;
pub use key_set::{JwksError, KeySet};

/// The claims of a token.
pub type Claims = Map<String, Value>;

/// The accepted signature algorithms. Algorithms with a shared secret (HS256 …) are excluded: with a public key as the
/// secret, everyone could sign.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Why a token is refused. The text contains nothing from the token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is too long.
    #[error("it has more than {MAX_TOKEN} bytes")]
    TooLong,
    /// Its header cannot be read, or names another algorithm.
    #[error(
        "it is no JWT, or is signed in a way that proves no issuer ('alg'): RS256 to 512, PS256 to 512, ES256, ES384 and EdDSA do"
    )]
    Header,
    /// It has to be read by an extension.
    #[error("its header asks for an extension ('crit'), and none is supported")]
    Critical,
    /// Its issuer has no such key.
    #[error("the key that signed it ('kid') is not among those of the issuer")]
    UnknownKey,
    /// The key did not sign it.
    #[error("its signature is not of the key that it names")]
    Signature,
    /// A claim is missing or wrong.
    #[error("its claim '{claim}' {problem}")]
    Claim {
        /// The claim.
        claim: String,
        /// What is wrong.
        problem: String,
    },
}

impl Refusal {
    /// A claim that is missing or wrong.
    pub fn claim(claim: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Claim { claim: claim.into(), problem: problem.to_string() }
    }
}

/// The algorithm and key id of a token, both unverified.
///
/// # Errors
/// [`Refusal`] of a token that no key can verify.
pub fn read_header(token: &str) -> Result<(Algorithm, Option<String>), Refusal> {
    if token.len() > MAX_TOKEN {
        return Err(Refusal::TooLong);
    }
    let header = decode_header(token).map_err(|_| Refusal::Header)?;
    if header.crit.is_some() {
        return Err(Refusal::Critical);
    }
    match ALGORITHMS.contains(&header.alg) {
        true => Ok((header.alg, header.kid)),
        false => Err(Refusal::Header),
    }
}

/// The claims of a token signed by this key.
///
/// # Errors
/// [`Refusal::Signature`].
pub fn read_claims(token: &str, algorithm: Algorithm, key: &DecodingKey) -> Result<Claims, Refusal> {
    let read: Result<TokenData<_>, _> = decode(token, key, &of_signature(algorithm));
    read.map(|token| token.claims).map_err(|_| Refusal::Signature)
}

/// Verifies only the signature. Claims are compared by an injected time, and with errors that name them.
fn of_signature(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation
}

#[cfg(test)]
mod tests;
