//! Reads the claims of a verified token.

use std::{sync::Arc, time::Duration};

use fairmesh_rib::access::User;
use fairmesh_tokens::{Claims, LEEWAY, Refusal, is_for, valid_until};
use serde_json::Value;
use tokio::time::Instant;

use super::OidcConfig;

/// Maximum number of groups of a user.
const MAX_GROUPS: usize = 256;
/// Maximum length of a user or group name, in bytes. Role bindings have the same limit.
const MAX_NAME: usize = 512;
/// The claim with an email address. It is accepted only if the issuer has verified the address.
const EMAIL: &str = "email";

/// The claims that a token must have.
#[derive(Debug)]
pub(crate) struct Expected {
    issuer: Arc<str>,
    audience: String,
    username_claim: String,
    groups_claim: String,
}

impl From<&OidcConfig> for Expected {
    fn from(config: &OidcConfig) -> Self {
        Self {
            issuer: config.issuer.as_str().into(),
            audience: config.client_id.clone(),
            username_claim: config.username_claim.clone(),
            groups_claim: config.groups_claim.clone(),
        }
    }
}

impl Expected {
    /// The user of a token with a verified signature.
    pub(crate) fn user(&self, claims: &Claims, now: Duration) -> Result<User, Refusal> {
        if claims.get("iss").and_then(Value::as_str) != Some(&*self.issuer) {
            return Err(Refusal::claim("iss", format_args!("is not {}", self.issuer)));
        }
        if !is_for(claims, &self.audience) {
            return Err(Refusal::claim("aud", format_args!("does not name {}", self.audience)));
        }
        let expires_at = valid_until(claims, now)?;
        let left = (expires_at + LEEWAY).saturating_sub(now);
        Ok(User {
            issuer: Arc::clone(&self.issuer),
            name: self.name(claims)?,
            groups: self.groups(claims)?,
            expires_at,
            ends: Instant::now() + left.min(MAX_VALIDITY),
        })
    }

    fn name(&self, claims: &Claims) -> Result<String, Refusal> {
        let claim = &*self.username_claim;
        if claim == EMAIL
            && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true))
        {
            return Err(Refusal::claim("email_verified", "says that the address was not verified"));
        }
        name(claim, claims.get(claim).ok_or_else(|| Refusal::claim(claim, "is missing"))?)
    }

    /// The groups in the claims, given as a list or as a single name.
    fn groups(&self, claims: &Claims) -> Result<Vec<String>, Refusal> {
        let claim = &*self.groups_claim;
        match claims.get(claim) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(groups)) if groups.len() > MAX_GROUPS => Err(Refusal::claim(
                claim,
                format_args!("has {} groups, of at most {MAX_GROUPS}", groups.len()),
            )),
            Some(Value::Array(groups)) => groups.iter().map(|group| name(claim, group)).collect(),
            Some(one) => Ok(vec![name(claim, one)?]),
        }
    }
}

/// Maximum duration of a watch with one token, regardless of its claims. The limit also keeps sums of times
/// representable.
const MAX_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A name from a claim. It must fit on a log line.
fn name(claim: &str, value: &Value) -> Result<String, Refusal> {
    match value.as_str() {
        Some(name) if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) => {
            let problem = format!("is empty, longer than {MAX_NAME} bytes, or has control characters");
            Err(Refusal::claim(claim, problem))
        }
        Some(name) => Ok(name.to_owned()),
        None => Err(Refusal::claim(claim, "is no text")),
    }
}
