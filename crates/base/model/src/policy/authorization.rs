//! Which callers may use a service.

use super::conditions::{AcceptedTokens, Condition};
use crate::{AddressPrefix, Invalid, Label, PathMatch, SpiffeId, SpiffePath, route::is_token};

/// Upper bound of the rules of a policy.
const MAX_RULES: usize = 200;
/// Upper bound of the callers, methods or paths of a rule, and of intermediaries.
const MAX_CONDITIONS: usize = 256;
/// Upper bound of a text in a rule, in bytes.
pub(super) const MAX_TEXT: usize = 1024;
/// The scheme of whole ids.
const SCHEME: &str = "spiffe://";

/// Which callers may use a service, decided by its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorization {
    /// How calls that are not allowed are handled.
    pub mode: AuthorizationMode,
    /// A matching `deny` rule refuses a call; otherwise an `allow` rule must match. With only `deny` rules, other calls are
    /// treated as for services without rules; without any rule, no call is allowed.
    pub rules: Vec<AuthorizationRule>,
    /// Callers that may name another caller in the header `x-fairmesh-caller`.
    pub intermediaries: Vec<CallerMatch>,
    /// The tokens of end users that count in conditions; a request with another one is refused. Empty: none is read.
    pub tokens: Vec<AcceptedTokens>,
}

/// How calls that are not allowed are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Refused.
    #[default]
    Enforce,
    /// Let through, counted and logged.
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

/// Conditions on calls; all must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRule {
    /// Its name, unique within the policy.
    pub name: Label,
    /// Whether matching calls are refused instead of allowed.
    pub denies: bool,
    /// Any of these callers; empty means all, even without an identity.
    pub from: Vec<CallerMatch>,
    /// Any of these methods, in upper case; empty means all.
    pub methods: Vec<String>,
    /// Any of these paths, exact or by prefix; empty means all.
    pub paths: Vec<PathMatch>,
    /// Any of these addresses, from which the connection comes; empty means all.
    pub sources: Vec<AddressPrefix>,
    /// Conditions on the request, all of which have to hold.
    pub when: Vec<Condition>,
}

/// A caller as proved by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerId {
    id: SpiffeId,
    /// The id as displayed.
    text: Box<str>,
    /// Start of the id's path within `text`.
    path_at: usize,
    is_federated: bool,
}

impl CallerId {
    /// A verified id of the mesh's trust domain.
    pub fn new(id: SpiffeId) -> Self {
        let text = id.to_string().into_boxed_str();
        let path_at = SCHEME.len() + id.domain.as_str().len() + 1;
        Self { id, text, path_at, is_federated: false }
    }

    /// A verified id of another trust domain; only a match on the whole id applies.
    pub fn federated(id: SpiffeId) -> Self {
        Self { is_federated: true, ..Self::new(id) }
    }

    /// Whether the id is of another trust domain.
    pub const fn is_federated(&self) -> bool {
        self.is_federated
    }

    /// The id.
    pub const fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// The id as displayed.
    pub const fn as_str(&self) -> &str {
        &self.text
    }

    /// The id without scheme and trust domain, such as `shop/cart`.
    pub fn path(&self) -> &str {
        &self.text[self.path_at..]
    }
}

/// A pattern of callers: `shop/cart`, `shop/*`, `fairmesh/agent/*`, `spiffe://prod/shop/cart`, or `*` for all with an identity.
/// Callers of other trust domains need their whole id, such as `spiffe://partner/shop/cart`.
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
                // The tenant must be complete, so that no other tenant has the same prefix.
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

    /// The id, if the pattern is a whole id.
    pub fn whole_id(&self) -> Option<SpiffeId> {
        if self.0.ends_with('*') { None } else { self.0.parse().ok() }
    }

    /// Whether a caller matches. A caller of another trust domain matches only its whole id.
    pub fn matches(&self, caller: &CallerId) -> bool {
        if caller.is_federated {
            return self.0 == *caller.text;
        }
        self.covers(caller)
    }

    /// Whether a caller matches in a rule that denies: there, `*` and prefixes include callers of other trust domains.
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
    /// Checks bounds, names and conditions.
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
    /// A rule that allows these callers all requests.
    pub fn allowing(name: Label, from: Vec<CallerMatch>) -> Self {
        let (methods, paths, sources, when) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { name, denies: false, from, methods, paths, sources, when }
    }

    /// Whether it is about all requests of its callers.
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
