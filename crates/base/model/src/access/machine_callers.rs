use crate::{
    Authorization, CallerId, CallerMatch, DefaultAuthorization, Label, MeshRole, SpiffePath, TrustDomain,
};

use super::Reach;

/// The identities that an agent may give to programs on its machine, as path prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineCallers {
    begins: Vec<String>,
    domain: Option<TrustDomain>,
}

impl MachineCallers {
    /// Returns the identities that programs on the machine of `agent` may have, if `agent` vouches for `tenants`.
    /// `domain` is the trust domain, if known.
    pub fn of(agent: Option<&Label>, tenants: &Reach, domain: Option<TrustDomain>) -> Self {
        let tenants = match tenants {
            Reach::Everything => return Self { begins: vec![String::new()], domain },
            Reach::Tenants(tenants) => tenants.iter().collect(),
            Reach::Nothing => Vec::new(),
        };
        let services = tenants.iter().map(|tenant| format!("{tenant}/"));
        let processes = agent.into_iter().flat_map(|agent| {
            let path = |role| SpiffePath::Mesh(role, agent.clone()).to_string();
            [
                path(MeshRole::Agent),
                format!("{}.", path(MeshRole::Operator)),
                format!("{}.", path(MeshRole::Proxy)),
            ]
        });
        Self { begins: services.chain(processes).collect(), domain }
    }

    /// Whether `pattern` may match one of the identities.
    fn may_match(&self, pattern: &str) -> bool {
        let path = match pattern.strip_prefix("spiffe://") {
            Some(rest) => match (rest.split_once('/'), &self.domain) {
                // The pattern names another trust domain.
                (Some((domain, _)), Some(own)) if domain != own.as_str() => return false,
                (Some((_, path)), _) => path,
                (None, _) => "*",
            },
            None => pattern,
        };
        self.begins.iter().any(|begin| match path.strip_suffix('*') {
            Some(start) => start.starts_with(begin.as_str()) || begin.starts_with(start),
            None => path.starts_with(begin.as_str()),
        })
    }
}

/// Whether a service may accept a call from one of these callers. Only then does their machine need the service's
/// records.
pub fn admits(
    authorization: Option<&Authorization>,
    default: DefaultAuthorization,
    callers: &MachineCallers,
) -> bool {
    admits_some(authorization, default, |pattern| callers.may_match(pattern.map_or("*", CallerMatch::as_str)))
}

/// Whether a service may accept any call from `caller`.
pub fn admits_caller(
    authorization: Option<&Authorization>,
    default: DefaultAuthorization,
    caller: &CallerId,
) -> bool {
    let is_denied = authorization.is_some_and(|authorization| {
        authorization.mode == crate::AuthorizationMode::Enforce
            && authorization.rules.iter().any(|rule| {
                let is_named = rule.from.is_empty() || rule.from.iter().any(|one| one.matches_denied(caller));
                rule.denies && rule.is_for_all_requests() && is_named
            })
    });
    !is_denied && admits_some(authorization, default, |pattern| pattern.is_none_or(|one| one.matches(caller)))
}

/// Whether a policy may allow some call. `may_match` returns whether a caller can match a pattern; its argument is
/// `None` for a rule without callers, which applies to all.
fn admits_some(
    authorization: Option<&Authorization>,
    default: DefaultAuthorization,
    may_match: impl Fn(Option<&CallerMatch>) -> bool,
) -> bool {
    let by_default = default != DefaultAuthorization::Deny;
    let Some(authorization) = authorization else { return by_default };
    if authorization.mode == crate::AuthorizationMode::Audit {
        return true;
    }
    let mut allowing = authorization.rules.iter().filter(|rule| !rule.denies).peekable();
    if allowing.peek().is_none() {
        return !authorization.rules.is_empty() && by_default;
    }
    // An intermediary matches as any of the callers for which it calls.
    let allowed = allowing.flat_map(|rule| match rule.from.is_empty() {
        true => vec![None],
        false => rule.from.iter().map(Some).collect(),
    });
    allowed.chain(authorization.intermediaries.iter().map(Some)).any(may_match)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AuthorizationRule, CallerMatch, Tenant};

    fn rule(denies: bool, from: &[&str]) -> AuthorizationRule {
        let from = from.iter().map(|text| CallerMatch::new(*text).unwrap()).collect();
        AuthorizationRule { denies, ..AuthorizationRule::allowing(Label::new("rule").unwrap(), from) }
    }

    #[test]
    fn agent_gets_records_of_services_that_its_programs_may_call() {
        let agent = Label::new("web-1").unwrap();
        let domain = Some(TrustDomain::new("prod").unwrap());
        let callers =
            MachineCallers::of(Some(&agent), &Reach::of(&[Tenant::new("shop").unwrap()]), domain.clone());
        let decide = |rules: Vec<AuthorizationRule>, default| {
            let authorization = Authorization { rules, ..Authorization::default() };
            admits(Some(&authorization), default, &callers)
        };
        use DefaultAuthorization::{Allow, Deny};
        for (from, may) in [
            (&["shop/web"][..], true),
            (&["shop/*"], true),
            (&["*"], true),
            (&[], true),
            (&["spiffe://prod/shop/web"], true),
            (&["spiffe://prod/*"], true),
            (&["spiffe://partner/shop/web"], false),
            (&["spiffe://partner/*"], false),
            (&["bank/*"], false),
            (&["shopping/*"], false),
            (&["fairmesh/operator/*"], true),
            (&["fairmesh/operator/web-1.uid-7"], true),
            (&["fairmesh/operator/web-2.*"], false),
            (&["fairmesh/agent/web-1"], true),
        ] {
            assert_eq!(decide(vec![rule(false, from)], Deny), may, "{from:?}");
            assert_eq!(decide(vec![rule(false, from)], Allow), may, "{from:?}");
        }
        assert!(decide(vec![rule(true, &["bank/*"])], Allow));
        assert!(!decide(vec![rule(true, &["bank/*"])], Deny));
        assert!(!decide(Vec::new(), Allow), "without any rule, no call is allowed");
        assert!(admits(None, Allow, &callers) && !admits(None, Deny, &callers));
        let all = MachineCallers::of(Some(&agent), &Reach::Everything, domain);
        assert!(admits(
            Some(&Authorization { rules: vec![rule(false, &["bank/vault"])], ..Authorization::default() }),
            Deny,
            &all
        ));
    }

    #[test]
    fn caller_gets_records_only_of_services_that_may_accept_its_calls() {
        let caller = CallerId::new("spiffe://prod/shop/web".parse().unwrap());
        let decide = |rules: Vec<AuthorizationRule>, default| {
            let authorization = Authorization { rules, ..Authorization::default() };
            admits_caller(Some(&authorization), default, &caller)
        };
        use DefaultAuthorization::{Allow, Deny};
        let for_one_path = AuthorizationRule { methods: vec!["POST".into()], ..rule(true, &["shop/web"]) };
        let sources = vec!["10.0.0.0/8".parse().unwrap()];
        let on_condition = AuthorizationRule { sources, ..rule(true, &["shop/web"]) };
        for (rules, default, may) in [
            (vec![rule(false, &["shop/web"])], Deny, true),
            (vec![rule(false, &[])], Deny, true),
            (vec![rule(false, &["shop/*"])], Deny, true),
            (vec![rule(false, &["shop/api"])], Allow, false),
            (vec![rule(false, &["shop/*"]), rule(true, &["shop/web"])], Allow, false),
            (vec![rule(true, &["shop/web"])], Allow, false),
            (vec![rule(true, &["shop/api"])], Allow, true),
            (vec![for_one_path], Allow, true),
            (vec![on_condition], Allow, true),
        ] {
            assert_eq!(decide(rules.clone(), default), may, "{rules:?}");
        }
        assert!(admits_caller(None, Allow, &caller) && !admits_caller(None, Deny, &caller));
    }
}
