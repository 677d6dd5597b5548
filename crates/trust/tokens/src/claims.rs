//! Validates the claims that every token must have, and converts claims for comparison with the conditions of rules.

use std::{collections::BTreeMap, fmt, time::Duration};

use fairmesh_router::{ClaimValue, UserToken};
use serde_json::{Map, Value};

use crate::{Claims, Refusal};

/// Maximum clock skew between an issuer and this machine.
pub const LEEWAY: Duration = Duration::from_secs(60);
/// Latest time accepted in a claim, in seconds since 1970: the end of the year 9999.
const MAX_TIME: f64 = 253_402_300_799.0;
/// Maximum time for which a token keeps a connection open. It also keeps sums of times representable.
const MAX_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum depth of nested claims that is read. Conditions name at most four levels.
const MAX_DEPTH: usize = 4;

/// Returns when a token expires (`exp`), as time since 1970. The token must not have expired (RFC 7519, 4.1.4), and
/// must be valid already (`nbf`).
///
/// # Errors
/// [`Refusal::Claim`] for a token that is expired, not valid yet, or has a missing or malformed time.
pub fn valid_until(claims: &Claims, now: Duration) -> Result<Duration, Refusal> {
    let expires_at = time(claims, "exp")?.ok_or_else(|| Refusal::claim("exp", "is missing"))?;
    if now >= expires_at + LEEWAY {
        let ago = Seconds(now.saturating_sub(expires_at));
        return Err(Refusal::claim("exp", format_args!("says that it expired {ago} ago")));
    }
    if let Some(begins_at) = time(claims, "nbf")?.filter(|begins_at| now + LEEWAY < *begins_at) {
        let left = Seconds(begins_at.saturating_sub(now));
        return Err(Refusal::claim("nbf", format_args!("says that it is valid only in {left}")));
    }
    Ok(expires_at)
}

/// Whether a token was issued for this audience (`aud`).
pub fn is_for(claims: &Claims, audience: &str) -> bool {
    audiences(claims).any(|one| one == audience)
}

fn audiences(claims: &Claims) -> impl Iterator<Item = &str> {
    let list = match claims.get("aud") {
        Some(Value::Array(audiences)) => &audiences[..],
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    list.iter().filter_map(Value::as_str)
}

/// Converts a verified token for comparison with the conditions of rules.
pub(crate) fn user_token(issuer: String, valid_for: Duration, claims: &Claims) -> UserToken {
    let audiences = audiences(claims).map(ToOwned::to_owned).collect();
    let valid_for = valid_for.min(MAX_VALIDITY);
    UserToken { issuer, audiences, valid_for, claims: object(claims, MAX_DEPTH) }
}

fn object(claims: &Map<String, Value>, depth: usize) -> BTreeMap<String, ClaimValue> {
    let read = |(name, value): (&String, &Value)| Some((name.clone(), claim(value, depth)?));
    claims.iter().filter_map(read).collect()
}

fn claim(value: &Value, depth: usize) -> Option<ClaimValue> {
    match value {
        Value::Object(inner) => (depth > 1).then(|| ClaimValue::Object(object(inner, depth - 1))),
        Value::Array(values) => Some(ClaimValue::Texts(values.iter().filter_map(text).collect())),
        one => text(one).map(|text| ClaimValue::Texts(vec![text])),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Reads a `NumericDate` claim (RFC 7519, 2).
fn time(claims: &Claims, claim: &str) -> Result<Option<Duration>, Refusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    match value.as_f64() {
        Some(seconds) if (0.0..=MAX_TIME).contains(&seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
        _ => Err(Refusal::claim(claim, "is no time")),
    }
}

/// A duration, formatted for people.
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
