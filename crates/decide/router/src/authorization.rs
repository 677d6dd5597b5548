//! Authorization: decides whether a caller may make a call. Used at the server end of mutual TLS, and by `fairmesh
//! explain --as`.

mod conditions;
mod local_transport;
mod user_token;

use std::{collections::BTreeSet, fmt};

use fairmesh_model::{
    Authorization, AuthorizationMode, AuthorizationRule, CallerId, CallerMatch, DefaultAuthorization, Label,
    LocalTransport, MeshRole, MtlsMode, PathMatch, Policy, Probe, SpiffeId, SpiffePath,
};

pub use conditions::RequestAttributes;
pub use local_transport::NeedsSidecar;
pub use user_token::{ClaimValue, TokenRefusal, TokenVerifier, UserToken};

/// The compiled authorization of a service.
#[derive(Clone, Debug, Default)]
pub struct AuthorizationTable {
    /// The policy's rules; `None` applies the mesh's default.
    policy: Option<Authorization>,
    default: DefaultAuthorization,
    mtls: MtlsMode,
    local_transport: LocalTransport,
    /// The policy's health probe, which checkers send to endpoints.
    probe: Option<Probe>,
    /// The agents that may send the probe; `None` admits all agents.
    checkers: Option<BTreeSet<Label>>,
}

/// A call in the form that rules match.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizationRequest<'a> {
    /// Identity of the caller; `None` if it has none.
    pub caller: Option<&'a CallerId>,
    /// Method of the request, in upper case.
    pub method: &'a str,
    /// Path of the request, with or without a query.
    pub path: &'a str,
    /// Attributes that the conditions of rules compare.
    pub attributes: RequestAttributes<'a>,
}

/// The decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizationDecision<'a> {
    /// Whether the call is allowed.
    pub is_allowed: bool,
    /// Whether a call that is not allowed is let through anyway, to discover what enforcement would refuse.
    pub is_audit: bool,
    /// The reason of the decision.
    pub reason: DecisionReason<'a>,
}

/// Reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionReason<'a> {
    /// A rule of the policy.
    Rule(&'a Label),
    /// The policy has rules, but none allows the call.
    NoRule,
    /// The call is the health check that the policy requests, made by an elected checker.
    HealthCheck,
    /// The caller is from another trust domain, and no rule allows it by name.
    OtherDomain,
    /// The policy has no rules for the call, so the mesh's default applies.
    Default,
}

impl AuthorizationTable {
    /// Compiles the authorization of a service with this policy. `checkers` are the elected checkers of all regions: a
    /// server does not know for which region its endpoint is registered, and every checker may learn of all services.
    /// `None` means that the control plane records no checkers, as in the previous release; any agent of this mesh may
    /// then be a checker.
    pub fn compile(
        policy: &Policy,
        default: DefaultAuthorization,
        checkers: Option<BTreeSet<Label>>,
    ) -> Self {
        let probe = policy.health_check.as_ref().map(|check| check.probe.clone());
        let (mtls, local_transport) = (policy.mtls, policy.local_transport);
        let policy = policy.authorization.as_deref().cloned();
        Self { policy, default, mtls, local_transport, probe, checkers }
    }

    /// Whether servers with mutual TLS also accept plaintext.
    pub fn permits_plaintext(&self) -> bool {
        self.mtls == MtlsMode::Permissive
    }

    /// The callers that rules name by their complete ID, in any trust domain.
    pub fn whole_ids(&self) -> BTreeSet<SpiffeId> {
        let rules = self.policy.iter().flat_map(|policy| &policy.rules).filter(|rule| !rule.denies);
        rules.flat_map(|rule| &rule.from).filter_map(CallerMatch::whole_id).collect()
    }

    /// Whether a caller may state on whose behalf it calls. Callers from other trust domains never may.
    pub fn is_intermediary(&self, caller: &CallerId) -> bool {
        if caller.is_federated() {
            return false;
        }
        let named = self.policy.iter().flat_map(|policy| &policy.intermediaries);
        named.into_iter().any(|one| one.matches(caller))
    }

    /// Decides about a call.
    pub fn decide(&self, request: &AuthorizationRequest<'_>) -> AuthorizationDecision<'_> {
        let path = request.path.split_once('?').map_or(request.path, |(path, _)| path);
        if self.is_probe(request) {
            return self.decided(true, DecisionReason::HealthCheck);
        }
        let is_plain = is_plain(path);
        self.by_rules(request.caller, |rule| {
            matches_caller(rule, request.caller)
                && matches_method(rule, request.method)
                && matches_path(rule, path, is_plain)
                && conditions::hold(rule, &request.attributes)
        })
    }

    /// Decides about all calls of a connection whose requests are not parsed. A rule that covers only some requests
    /// allows none of them, but denies all of them. A checker cannot use such a connection for its probe: a process
    /// that does not parse requests makes the probe of [`probe_for`](Self::probe_for) itself.
    pub fn decide_connection(&self, caller: Option<&CallerId>) -> AuthorizationDecision<'_> {
        self.by_rules(caller, |rule| {
            matches_caller(rule, caller) && (rule.denies || rule.is_for_all_requests())
        })
    }

    fn by_rules(
        &self,
        caller: Option<&CallerId>,
        matches: impl Fn(&AuthorizationRule) -> bool,
    ) -> AuthorizationDecision<'_> {
        let decision = self.by_policy(matches);
        let is_federated = caller.is_some_and(CallerId::is_federated);
        match decision.reason {
            _ if !is_federated => decision,
            // Audit mode does not apply: a caller from another trust domain may do only what a rule allows.
            DecisionReason::Rule(_) => AuthorizationDecision { is_audit: false, ..decision },
            _ => AuthorizationDecision {
                is_allowed: false,
                is_audit: false,
                reason: DecisionReason::OtherDomain,
            },
        }
    }

    fn by_policy(&self, matches: impl Fn(&AuthorizationRule) -> bool) -> AuthorizationDecision<'_> {
        let Some(policy) = &self.policy else { return self.by_default() };
        let (mut allowed_by, mut allows_any) = (None, policy.rules.is_empty());
        for rule in &policy.rules {
            allows_any |= !rule.denies;
            match rule.denies {
                true if matches(rule) => return self.decided(false, DecisionReason::Rule(&rule.name)),
                false if allowed_by.is_none() && matches(rule) => allowed_by = Some(&rule.name),
                _ => {}
            }
        }
        match (allowed_by, allows_any) {
            (Some(name), _) => self.decided(true, DecisionReason::Rule(name)),
            (None, true) => self.decided(false, DecisionReason::NoRule),
            (None, false) => self.by_default(),
        }
    }

    fn by_default(&self) -> AuthorizationDecision<'_> {
        AuthorizationDecision::by_default(self.default)
    }

    fn decided<'a>(&self, is_allowed: bool, reason: DecisionReason<'a>) -> AuthorizationDecision<'a> {
        let is_audit = self.policy.as_ref().is_some_and(|policy| policy.mode == AuthorizationMode::Audit);
        AuthorizationDecision { is_allowed, is_audit: is_audit && !is_allowed, reason }
    }

    /// The probe that a caller may send regardless of the rules: the policy's probe if the caller is an elected
    /// checker, otherwise `None`.
    pub fn probe_for(&self, caller: Option<&CallerId>) -> Option<&Probe> {
        self.probe.as_ref().filter(|_| caller.is_some_and(|caller| self.is_checker(caller)))
    }

    fn is_checker(&self, caller: &CallerId) -> bool {
        match &caller.id().path {
            SpiffePath::Mesh(MeshRole::Agent, name) => {
                !caller.is_federated() && self.checkers.as_ref().is_none_or(|known| known.contains(name))
            }
            SpiffePath::Mesh(..) | SpiffePath::Service(_) => false,
        }
    }

    /// Whether a request exactly matches the policy's probe and comes from an elected checker.
    fn is_probe(&self, request: &AuthorizationRequest<'_>) -> bool {
        let probe = self.probe_for(request.caller).and_then(Probe::request);
        probe.is_some_and(|probe| probe == (request.method, request.path))
    }
}

impl AuthorizationDecision<'_> {
    /// The decision of the mesh's default.
    pub(crate) fn by_default(default: DefaultAuthorization) -> Self {
        Self {
            is_allowed: default == DefaultAuthorization::Allow,
            is_audit: default == DefaultAuthorization::Audit,
            reason: DecisionReason::Default,
        }
    }

    /// Returns the decision, replaced by this default if no rule decided.
    pub(crate) fn or_default(self, default: DefaultAuthorization) -> Self {
        if self.reason == DecisionReason::Default { Self::by_default(default) } else { self }
    }

    /// Whether the call is let through.
    pub const fn permits(&self) -> bool {
        self.is_allowed || self.is_audit
    }
}

impl fmt::Display for AuthorizationDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match (self.is_allowed, self.is_audit) {
            (true, _) => "allowed",
            (false, true) => "not allowed, and made nevertheless, since the mode is audit",
            (false, false) => "refused",
        };
        match self.reason {
            DecisionReason::Rule(name) => write!(f, "{verb}: rule '{name}' of the policy"),
            DecisionReason::NoRule => write!(f, "{verb}: no rule of the policy allows it"),
            DecisionReason::OtherDomain => {
                write!(
                    f,
                    "{verb}: the caller is of another trust domain, and no rule with its whole id allows it"
                )
            }
            DecisionReason::HealthCheck => write!(f, "{verb}: the health check of the policy"),
            DecisionReason::Default => write!(f, "{verb}: the default of the mesh, since no rule decides"),
        }
    }
}

/// Whether a rule covers a method. Methods differ by case (RFC 9110 9.1), but servers exist that take `delete` for
/// `DELETE`: a rule that denies covers both, as for paths.
fn matches_method(rule: &AuthorizationRule, method: &str) -> bool {
    let mut methods = rule.methods.iter();
    let covers = |named: &String| match rule.denies {
        true => named.eq_ignore_ascii_case(method),
        false => named == method,
    };
    rule.methods.is_empty() || methods.any(covers)
}

fn matches_caller(rule: &AuthorizationRule, caller: Option<&CallerId>) -> bool {
    // A rule without callers covers only callers of this mesh.
    let is_for_all = rule.from.is_empty() && (rule.denies || !caller.is_some_and(CallerId::is_federated));
    let matches = |from: &CallerMatch, caller: &CallerId| match rule.denies {
        true => from.matches_denied(caller),
        false => from.matches(caller),
    };
    is_for_all || caller.is_some_and(|caller| rule.from.iter().any(|from| matches(from, caller)))
}

/// Whether a rule matches a path. Servers may interpret a path that is not plain in different ways. Such a path never
/// matches a rule that allows, and always matches a rule that denies.
fn matches_path(rule: &AuthorizationRule, path: &str, is_plain: bool) -> bool {
    if rule.paths.is_empty() {
        return true;
    }
    match rule.denies {
        true => !is_plain || rule.paths.iter().any(|denied| matches_denied_path(denied, path)),
        false => is_plain && rule.paths.iter().any(|allowed| matches_allowed_path(allowed, path)),
    }
}

fn matches_allowed_path(allowed: &PathMatch, path: &str) -> bool {
    match allowed {
        PathMatch::Exact(exact) => path == exact,
        PathMatch::Prefix(prefix) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        // Validated policies contain no such conditions.
        PathMatch::Template(_) | PathMatch::Regex(_) => false,
    }
}

/// Whether a path matches a rule that denies. Many servers ignore the case of a path, a final slash, and everything
/// after a decoded `?` or `#`, so a rule that denies ignores them too. It may refuse more paths than it names, but
/// never fewer.
fn matches_denied_path(denied: &PathMatch, path: &str) -> bool {
    let (denied, is_prefix) = match denied {
        PathMatch::Exact(exact) => (exact.as_str(), false),
        PathMatch::Prefix(prefix) => (prefix.as_str(), true),
        // Validated policies contain no such conditions.
        PathMatch::Template(_) | PathMatch::Regex(_) => return false,
    };
    let denied = denied.trim_end_matches('/').as_bytes();
    let path = before_encoded_query(path).trim_end_matches('/').as_bytes();
    path.split_at_checked(denied.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(denied) && (rest.is_empty() || is_prefix && rest.starts_with(b"/"))
    })
}

/// Returns the path up to the first encoded `?` or `#`.
fn before_encoded_query(path: &str) -> &str {
    let is_end = |at: &usize| {
        let encoded = path.as_bytes().get(at + 1..at + 3).and_then(decode_hex);
        matches!(encoded, Some(b'?' | b'#'))
    };
    let end = path.match_indices('%').map(|(at, _)| at).find(is_end);
    end.map_or(path, |end| &path[..end])
}

/// Whether every server splits the path into the same segments: it has no empty or dot segments, no backslash and no
/// path parameters, and encodes only bytes that must be encoded.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let is_unambiguous = bytes.iter().enumerate().all(|(at, byte)| match byte {
        b'%' => bytes.get(at + 1..at + 3).and_then(decode_hex).is_some_and(has_to_be_encoded),
        b'\\' | b';' => false,
        byte => byte.is_ascii_graphic(),
    });
    let Some(segments) = path.strip_prefix('/') else { return false };
    let segments = segments.strip_suffix('/').unwrap_or(segments);
    let has_odd_segment = segments.split('/').any(|segment| matches!(segment, "" | "." | ".."));
    is_unambiguous && (segments.is_empty() && path == "/" || !has_odd_segment)
}

fn decode_hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let [high, low] = digits else { return None };
    Some(digit(high)? << 4 | digit(low)?)
}

fn has_to_be_encoded(byte: u8) -> bool {
    !(byte.is_ascii_alphanumeric() || byte.is_ascii_control() || b"-._~/\\;%".contains(&byte))
}
