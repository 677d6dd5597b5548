//! Reads the claims of a verified token.

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_rib::access::User;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{OidcConfig, Refusal};

/// Maximum clock difference between the issuer and this machine.
const LEEWAY: Duration = Duration::from_secs(60);
/// The most groups of a user.
const MAX_GROUPS: usize = 256;
/// The longest name of a user or group in bytes, as in role bindings.
const MAX_NAME: usize = 512;
/// The claim with an email address, which counts only if the issuer has verified it.
const EMAIL: &str = "email";

/// Required claims of tokens.
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
    pub(crate) fn user(&self, claims: &Map<String, Value>, now: Duration) -> Result<User, Refusal> {
        if claims.get("iss").and_then(Value::as_str) != Some(&*self.issuer) {
            return Err(Refusal::claim("iss", format_args!("is not {}", self.issuer)));
        }
        let is_audience = |value: &Value| value.as_str() == Some(&*self.audience);
        let is_for_this_mesh = claims.get("aud").is_some_and(|audience| match audience {
            Value::Array(audiences) => audiences.iter().any(is_audience),
            one => is_audience(one),
        });
        if !is_for_this_mesh {
            return Err(Refusal::claim("aud", format_args!("does not name {}", self.audience)));
        }
        let expires_at = time(claims, "exp")?.ok_or_else(|| Refusal::claim("exp", "is missing"))?;
        if now >= expires_at + LEEWAY {
            let ago = Seconds(now.saturating_sub(expires_at));
            return Err(Refusal::claim("exp", format_args!("says that it expired {ago} ago")));
        }
        if let Some(begins_at) = time(claims, "nbf")?.filter(|begins_at| now + LEEWAY < *begins_at) {
            let left = Seconds(begins_at.saturating_sub(now));
            return Err(Refusal::claim("nbf", format_args!("says that it is valid only in {left}")));
        }
        let left = (expires_at + LEEWAY).saturating_sub(now);
        Ok(User {
            issuer: Arc::clone(&self.issuer),
            name: self.name(claims)?,
            groups: self.groups(claims)?,
            expires_at,
            ends: Instant::now() + left.min(MAX_VALIDITY),
        })
    }

    fn name(&self, claims: &Map<String, Value>) -> Result<String, Refusal> {
        let claim = &*self.username_claim;
        if claim == EMAIL
            && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true))
        {
            return Err(Refusal::claim("email_verified", "says that the address was not verified"));
        }
        name(claim, claims.get(claim).ok_or_else(|| Refusal::claim(claim, "is missing"))?)
    }

    /// The groups: a list or a single one.
    fn groups(&self, claims: &Map<String, Value>) -> Result<Vec<String>, Refusal> {
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

/// The longest watch with one token, whatever its claims. The bound keeps sums of times representable.
const MAX_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The latest time in a claim: the year 9999.
const MAX_TIME: f64 = 253_402_300_799.0;

/// A `NumericDate` (RFC 7519, 2).
fn time(claims: &Map<String, Value>, claim: &str) -> Result<Option<Duration>, Refusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    match value.as_f64() {
        Some(seconds) if (0.0..=MAX_TIME).contains(&seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
        _ => Err(Refusal::claim(claim, "is no time")),
    }
}

/// A name that fits on a log line.
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

/// A time for people.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ 0..120 => write!(f, "{seconds} s"),
            seconds @ 120..7200 => write!(f, "{} min", seconds / 60),
            seconds => write!(f, "{} h", seconds / 3600),
        }
    }
}
