//! Conditions of rules: the source of a request, its token and its headers.

use std::{fmt, net::IpAddr};

use fairmesh_model::{AuthorizationRule, Condition, ConditionSubject};

use super::UserToken;
use crate::Headers;

/// The attributes of a request that conditions of rules compare, in addition to caller, method and path.
#[derive(Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// Source address of the connection; `None` if it is unknown, as for a Unix socket.
    pub source: Option<IpAddr>,
    /// The verified token that the service accepts.
    pub token: Option<&'a UserToken>,
    /// The headers. [`Headers::any`] must find every header that a program may read under a name.
    pub headers: &'a dyn Headers,
}

impl Default for RequestAttributes<'_> {
    fn default() -> Self {
        Self { source: None, token: None, headers: &() }
    }
}

/// Omits claims and headers, which may contain personal data and secrets.
impl fmt::Debug for RequestAttributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestAttributes").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Whether the conditions of a rule hold. Unknown attributes count against the caller: they match no rule that allows,
/// and every rule that denies.
pub(super) fn hold(rule: &AuthorizationRule, attributes: &RequestAttributes<'_>) -> bool {
    let comes_from = |source| rule.sources.iter().any(|block| block.contains(source));
    let is_source = rule.sources.is_empty() || attributes.source.map_or(rule.denies, comes_from);
    is_source && rule.when.iter().all(|condition| holds(condition, rule.denies, attributes))
}

/// Whether one condition holds. Repeated header fields count against the caller, since the program may read any of
/// them.
fn holds(condition: &Condition, denies: bool, attributes: &RequestAttributes<'_>) -> bool {
    let (mut is_there, mut hits, mut misses) = (false, false, false);
    let mut see = |value: &[u8]| {
        let is_hit = condition.values.iter().any(|pattern| pattern.matches(value));
        (is_there, hits, misses) = (true, hits || is_hit, misses || !is_hit);
    };
    let has_foreign_line = match &condition.subject {
        ConditionSubject::Claim(path) => {
            let values = attributes.token.map(|token| token.values(path)).unwrap_or_default();
            values.iter().for_each(|value| see(value.as_bytes()));
            false
        }
        ConditionSubject::Header(name) => {
            attributes.headers.any(name, &mut |value| {
                see(value);
                false
            });
            misses
        }
    };
    match (denies, condition.excludes) {
        (false, false) => hits && !has_foreign_line,
        (false, true) => is_there && !hits,
        (true, false) => hits,
        (true, true) => !hits || has_foreign_line,
    }
}
