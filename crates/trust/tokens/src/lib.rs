//! Tokens of end users and of workloads: JSON Web Tokens (RFC 7519), verified with the keys of their issuers (RFC 7517).
//!
//! The control plane verifies the tokens of users of an identity provider here, servers and gateways those of a
//! service's callers, and agents JWT-SVIDs. The crate does not fetch keys, and no error contains any part of a token.
//!
//! Opaque tokens were rejected, because each call would need a request to the issuer: no call may wait for another
//! company's service.

mod claims;
mod issuers;
mod jwt_svid;
mod key_set;

use std::fmt;

use fairmesh_model::MAX_TOKEN;
pub use jsonwebtoken::{Algorithm, DecodingKey};
use jsonwebtoken::{TokenData, Validation, decode, decode_header};
use serde_json::{Map, Value};

pub use claims::{LEEWAY, is_for, valid_until};
pub use issuers::Issuers;
pub use jwt_svid::{stated_subject, verify_svid, write_jwks};
pub use key_set::{JwksError, KeySet};

/// The claims of a token.
pub type Claims = Map<String, Value>;

/// Accepted signature algorithms. Algorithms with a shared secret (HS256 …) are excluded: if a public key were used
/// as the secret, anyone could sign.
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

/// Reason why a token is refused. The text contains no part of the token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The token is too long.
    #[error("it has more than {MAX_TOKEN} bytes")]
    TooLong,
    /// The token's header cannot be read, or names an unsupported algorithm.
    #[error(
        "it is no JWT, or is signed in a way that proves no issuer ('alg'): RS256 to 512, PS256 to 512, ES256, ES384 and EdDSA do"
    )]
    Header,
    /// The token requires an extension (`crit`), and no extension is supported.
    #[error("its header asks for an extension ('crit'), and none is supported")]
    Critical,
    /// The issuer has no key with the token's key id.
    #[error("the key that signed it ('kid') is not among those of the issuer")]
    UnknownKey,
    /// The signature was not made with the key.
    #[error("its signature is not of the key that it names")]
    Signature,
    /// A claim is missing or invalid.
    #[error("its claim '{claim}' {problem}")]
    Claim {
        /// Name of the claim.
        claim: String,
        /// Explanation of what is wrong with the claim.
        problem: String,
    },
}

impl Refusal {
    /// Creates the refusal for a missing or invalid claim.
    pub fn claim(claim: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::Claim { claim: claim.into(), problem: problem.to_string() }
    }
}

/// Returns the algorithm and key id in a token's header, both unverified.
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

/// Verifies a token with this key, and returns its claims.
///
/// # Errors
/// [`Refusal::Signature`] if the key did not sign the token.
pub fn read_claims(token: &str, algorithm: Algorithm, key: &DecodingKey) -> Result<Claims, Refusal> {
    let read: Result<TokenData<_>, _> = decode(token, key, &of_signature(algorithm));
    read.map(|token| token.claims).map_err(|_| Refusal::Signature)
}

/// Returns a validation of the signature alone. Claims are checked separately, with an injected time, and with errors
/// that name the claim.
fn of_signature(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation
}

#[cfg(test)]
mod tests;
