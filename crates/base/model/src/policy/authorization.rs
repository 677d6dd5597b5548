//! Which callers may use a service.

use super::conditions::{AcceptedTokens, Condition};
use crate::{AddressPrefix, Invalid, Label, PathMatch, SpiffeId, SpiffePath, route::is_token};

/// Maximum number of rules in a policy.
const MAX_RULES: usize = 200;
/// Maximum number of callers, methods or paths of a rule, and of intermediaries.
const MAX_CONDITIONS: usize = 256;
/// Maximum length of a text in a rule, in bytes.
pub(super) const MAX_TEXT: usize = 1024;
/// The scheme of full ids.
const SCHEME: &str = "spiffe://";

/// Which callers may use a service. The service's servers enforce it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorization {
    /// How calls that no rule allows are handled.
    pub mode: AuthorizationMode,
    /// Rules. A call that matches a `deny` rule is refused. Any other call must match an `allow` rule. If there are
    /// only `deny` rules, other calls are treated like calls to services without rules. Without any rule, no call is
    /// allowed.
    pub rules: Vec<AuthorizationRule>,
    /// Callers that may act for another caller, which they name in the header `x-fairmesh-caller`.
    pub intermediaries: Vec<CallerMatch>,
    /// Accepted end user tokens, which conditions can use. A request with any other token is refused. If empty,
    /// tokens are not read.
    pub tokens: Vec<AcceptedTokens>,
}

/// How calls that are not allowed are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Calls are refused.
    #[default]
    Enforce,
    /// Calls pass, and are counted and logged.
    Audit,
}

/// The default for services without rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultAuthorization {
    /// All calls are allowed.
    #[default]
    Allow,
    /// All calls are allowed, counted and logged.
    Audit,
    /// No call is allowed.
    Deny,
}

/// A rule: conditions on calls, all of which must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRule {
    /// The rule's name, unique within the policy.
    pub name: Label,
    /// Whether matching calls are refused instead of allowed.
    pub denies: bool,
    /// Callers, one of which must match. Empty means all callers, even without an identity.
    pub from: Vec<CallerMatch>,
    /// Methods in upper case, one of which must match. Empty means all methods.
    pub methods: Vec<String>,
    /// Paths or path prefixes, one of which must match. Empty means all paths.
    pub paths: Vec<PathMatch>,
    /// Source addresses of the connection, one of which must match. Empty means all addresses.
    pub sources: Vec<AddressPrefix>,
    /// Conditions on the request, all of which must hold.
    pub when: Vec<Condition>,
}

/// The identity of a caller, as authenticated by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerId {
    id: SpiffeId,
    /// The id as a string.
    text: Box<str>,
    /// Position of the path within `text`.
    path_at: usize,
    is_federated: bool,
}

impl CallerId {
    /// An id from a verified certificate of the mesh's trust domain.
    pub fn new(id: SpiffeId) -> Self {
        let text = id.to_string().into_boxed_str();
        let path_at = SCHEME.len() + id.domain.as_str().len() + 1;
        Self { id, text, path_at, is_federated: false }
    }

    /// An id from a verified certificate of another trust domain. Only patterns with the full id match it.
    pub fn federated(id: SpiffeId) -> Self {
        Self { is_federated: true, ..Self::new(id) }
    }

    /// Whether the id belongs to another trust domain.
    pub const fn is_federated(&self) -> bool {
        self.is_federated
    }

    /// The id.
    pub const fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// The id as a string.
    pub const fn as_str(&self) -> &str {
        &self.text
    }

    /// The id without scheme and trust domain, such as `shop/cart`.
    pub fn path(&self) -> &str {
        &self.text[self.path_at..]
    }
}

/// A pattern of callers: `shop/cart`, `shop/*`, `fairmesh/agent/*`, `spiffe://prod/shop/cart`, or `*` for all callers
/// with an identity. Callers of other trust domains match only their full id, such as `spiffe://partner/shop/cart`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerMatch(String);

impl CallerMatch {
    /// Parses an id, or a prefix of ids followed by `*`.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        let known = match text.strip_suffix('*') {
            Some("") => true,
            Some(start) => {
                let path = match start.strip_prefix(SCHEME) {
                    Some(rest) => rest.split_once('/').map(|(_, path)| path),
                    None => Some(start),
                };
                // The prefix must contain the whole tenant name, so that no other tenant matches.
                path.is_some_and(|path| path.contains('/') || start.starts_with(SCHEME))
                    && !start.contains('*')
                    && start.is_ascii()
            }
            None if text.starts_with(SCHEME) => text.parse::<SpiffeId>().is_ok(),
            None => text.parse::<SpiffePath>().is_ok(),
        };
        if known && text.len() <= MAX_TEXT {
            return Ok(Self(text));
        }
        let hint = "write TENANT/SERVICE, a SPIFFE id, the beginning of some with '*' at its end, such as shop/*, or *";
        Err(Invalid::new("", format!("'{text}' is no caller"), hint))
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id, if the pattern is a full id.
    pub fn whole_id(&self) -> Option<SpiffeId> {
        if self.0.ends_with('*') { None } else { self.0.parse().ok() }
    }

    /// Whether a caller matches. A caller of another trust domain matches only by its full id.
    pub fn matches(&self, caller: &CallerId) -> bool {
        if caller.is_federated {
            return self.0 == *caller.text;
        }
        self.covers(caller)
    }

    /// Whether a caller matches in a deny rule. There, `*` and full-id prefixes also match callers of other trust
    /// domains.
    pub fn matches_denied(&self, caller: &CallerId) -> bool {
        match caller.is_federated && self.0 != "*" && !self.0.starts_with(SCHEME) {
            true => false,
            false => self.covers(caller),
        }
    }

    fn covers(&self, caller: &CallerId) -> bool {
        let subject = if self.0.starts_with(SCHEME) { caller.as_str() } else { caller.path() };
        match self.0.strip_suffix('*') {
            Some(start) => subject.starts_with(start),
            None => subject == self.0,
        }
    }
}

impl Authorization {
    /// Checks limits, names and conditions.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        at_most("rules", self.rules.len(), MAX_RULES)?;
        at_most("intermediaries", self.intermediaries.len(), MAX_CONDITIONS)?;
        AcceptedTokens::validate_all(&self.tokens)?;
        let mut names = std::collections::BTreeSet::new();
        for (i, rule) in self.rules.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("rules[{i}]"));
            rule.validate().map_err(at)?;
            if !names.insert(&rule.name) {
                let problem = format!("'{}' is used twice", rule.name);
                return Err(at(Invalid::new("name", problem, "give every rule its own name")));
            }
        }
        Ok(())
    }
}

impl AuthorizationRule {
    /// A rule that allows all requests of these callers.
    pub fn allowing(name: Label, from: Vec<CallerMatch>) -> Self {
        let (methods, paths, sources, when) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { name, denies: false, from, methods, paths, sources, when }
    }

    /// Whether the rule applies to all requests of its callers.
    pub fn is_for_all_requests(&self) -> bool {
        self.methods.is_empty() && self.paths.is_empty() && self.sources.is_empty() && self.when.is_empty()
    }

    fn validate(&self) -> Result<(), Invalid> {
        at_most("from", self.from.len(), MAX_CONDITIONS)?;
        at_most("methods", self.methods.len(), MAX_CONDITIONS)?;
        at_most("paths", self.paths.len(), MAX_CONDITIONS)?;
        at_most("sourceAddresses", self.sources.len(), MAX_CONDITIONS)?;
        Condition::validate_all(&self.when)?;
        for (i, method) in self.methods.iter().enumerate() {
            if !is_token(method) || method.bytes().any(|byte| byte.is_ascii_lowercase()) {
                let problem = format!("'{method}' is not a method");
                return Err(Invalid::new(format!("methods[{i}]"), problem, "write it in upper case, as GET"));
            }
        }
        for (i, path) in self.paths.iter().enumerate() {
            let (PathMatch::Exact(text) | PathMatch::Prefix(text)) = path else {
                let hint = "write exact or prefix: what a rule allows has to be plain";
                return Err(Invalid::new(format!("paths[{i}]"), "is a template or an expression", hint));
            };
            if text.len() > MAX_TEXT {
                let problem = format!("has {} bytes", text.len());
                return Err(Invalid::new(format!("paths[{i}]"), problem, format!("give at most {MAX_TEXT}")));
            }
        }
        Ok(())
    }
}

pub(super) fn at_most(field: &str, length: usize, most: usize) -> Result<(), Invalid> {
    match length <= most {
        true => Ok(()),
        false => Err(Invalid::new(field, format!("has {length}"), format!("give at most {most}"))),
    }
}
