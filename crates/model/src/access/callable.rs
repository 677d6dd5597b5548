use crate::{Authorization, DefaultAuthorization, Label, MeshRole, SpiffePath, TrustDomain};

use super::Reach;

/// The identities that an agent may give to programs of its machine, as the beginnings of their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineCallers {
    begins: Vec<String>,
    domain: Option<TrustDomain>,
}

impl MachineCallers {
    /// Of an agent that vouches for these tenants, in a trust domain, if that is known.
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

    /// Whether a pattern of callers may match one of them.
    fn may_match(&self, pattern: &str) -> bool {
        let path = match pattern.strip_prefix("spiffe://") {
            Some(rest) => match (rest.split_once('/'), &self.domain) {
                // Of another trust domain, whatever follows.
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

/// Whether a service may accept a call of some of these callers, so that their machine needs its records.
pub fn admits(
    authorization: Option<&Authorization>,
    default: DefaultAuthorization,
    callers: &MachineCallers,
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
    // One that calls for others is matched as them.
    let allowed = allowing.flat_map(|rule| match rule.from.is_empty() {
        true => vec!["*"],
        false => rule.from.iter().map(crate::CallerMatch::as_str).collect(),
    });
    let intermediaries = authorization.intermediaries.iter().map(crate::CallerMatch::as_str);
    allowed.chain(intermediaries).any(|pattern| callers.may_match(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AuthorizationRule, CallerMatch, Tenant};

    fn rule(denies: bool, from: &[&str]) -> AuthorizationRule {
        AuthorizationRule {
            name: Label::new("rule").unwrap(),
            denies,
            from: from.iter().map(|text| CallerMatch::new(*text).unwrap()).collect(),
            methods: Vec::new(),
            paths: Vec::new(),
        }
    }

    #[test]
    fn a_machine_needs_the_services_that_its_programs_may_call() {
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
}
