//! End users' tokens, and which of them a service accepts.

use std::{collections::BTreeMap, fmt, time::Duration};

use fairmesh_model::AuthorizationMode;

use super::AuthorizationTable;
use crate::Headers;

/// The scheme of tokens in the header `authorization` (RFC 6750, 2.1), compared without case.
const SCHEME: &str = "bearer";

/// A token whose signature, issuer and validity period were verified.
#[derive(Clone, PartialEq, Eq)]
pub struct UserToken {
    /// The issuer (`iss`).
    pub issuer: String,
    /// The audiences for which the token was issued (`aud`).
    pub audiences: Vec<String>,
    /// How long the token remains valid after its verification.
    pub valid_for: Duration,
    /// All claims by name.
    pub claims: BTreeMap<String, ClaimValue>,
}

/// The value of a claim, as conditions compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimValue {
    /// A text, number or boolean; for a list, one text per element.
    Texts(Vec<String>),
    /// Nested claims by name.
    Object(BTreeMap<String, ClaimValue>),
}

/// Why a token is not accepted, or cannot be verified. The texts contain nothing from the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// The keys of issuers are not known yet.
    #[error("the keys of the issuers of tokens are not known yet")]
    Unknown,
    /// The token is refused.
    #[error("the token is refused: {0}")]
    Refused(String),
}

/// Verifies signature, issuer and validity period of tokens.
pub trait TokenVerifier: fmt::Debug + Send + Sync {
    /// Verifies a token, and returns its claims if it is valid now.
    ///
    /// # Errors
    /// [`TokenRefusal`].
    fn verify(&self, token: &str) -> Result<UserToken, TokenRefusal>;
}

/// Omits claims, which may contain personal data.
impl fmt::Debug for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserToken").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl UserToken {
    /// Returns the values of a claim, given the path of names that leads to it; empty if the claim is missing.
    pub fn values(&self, path: &[String]) -> &[String] {
        let Some((last, outer)) = path.split_last() else { return &[] };
        let mut claims = &self.claims;
        for name in outer {
            match claims.get(name) {
                Some(ClaimValue::Object(inner)) => claims = inner,
                _ => return &[],
            }
        }
        match claims.get(last) {
            Some(ClaimValue::Texts(values)) => values,
            _ => &[],
        }
    }
}

impl AuthorizationTable {
    /// Returns the token of a request, if the policy accepts tokens and the request has one. In audit mode, a refused
    /// token counts as missing.
    ///
    /// # Errors
    /// [`TokenRefusal`] if the token does not verify or is not for this service.
    pub fn read_token(
        &self,
        headers: &dyn Headers,
        verifier: &dyn TokenVerifier,
    ) -> Result<Option<UserToken>, TokenRefusal> {
        let Some(policy) = self.policy.as_ref().filter(|policy| !policy.tokens.is_empty()) else {
            return Ok(None);
        };
        match self.accepted_token(headers, verifier) {
            Err(TokenRefusal::Refused(_)) if policy.mode == AuthorizationMode::Audit => Ok(None),
            token => token,
        }
    }

    fn accepted_token(
        &self,
        headers: &dyn Headers,
        verifier: &dyn TokenVerifier,
    ) -> Result<Option<UserToken>, TokenRefusal> {
        let Some(text) = bearer_token(headers)? else { return Ok(None) };
        let token = verifier.verify(&text)?;
        let mut accepted = self.policy.iter().flat_map(|policy| &policy.tokens);
        let Some(of_issuer) = accepted.find(|one| one.issuer == token.issuer) else {
            return refused("the policy of this service accepts none of its issuer ('iss')");
        };
        match of_issuer.audiences.iter().any(|audience| token.audiences.contains(audience)) {
            true => Ok(Some(token)),
            false => refused("its audience ('aud') is not one that the policy of this service accepts"),
        }
    }
}

/// Returns the request's bearer token. There must not be more than one.
fn bearer_token(headers: &dyn Headers) -> Result<Option<String>, TokenRefusal> {
    let (mut lines, mut found) = (0, None);
    headers.any("authorization", &mut |line| {
        lines += 1;
        found = std::str::from_utf8(line).ok().and_then(|line| {
            let (scheme, token) = line.trim_ascii().split_once(' ')?;
            scheme.eq_ignore_ascii_case(SCHEME).then(|| token.trim_ascii().to_owned())
        });
        false
    });
    match lines {
        0 | 1 => Ok(found),
        _ => refused("the request has several headers 'authorization'"),
    }
}

fn refused<T>(problem: &str) -> Result<T, TokenRefusal> {
    Err(TokenRefusal::Refused(problem.to_owned()))
}
