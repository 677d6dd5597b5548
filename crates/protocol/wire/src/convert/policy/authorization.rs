use fairmesh_model::{
    AcceptedTokens, AddressPrefix, Authorization, AuthorizationMode, AuthorizationRule, CallerMatch,
    Condition, ConditionSubject, DefaultAuthorization, Invalid, PathMatch, ValueMatch,
};

use crate::{
    convert::read_enum,
    v1::{
        self, authorization::Mode, authorization_condition::Subject, authorization_rule::Action,
        authorized_path,
    },
};

impl From<Authorization> for v1::Authorization {
    fn from(authorization: Authorization) -> Self {
        let mode = match authorization.mode {
            AuthorizationMode::Enforce => Mode::Enforce,
            AuthorizationMode::Audit => Mode::Audit,
        };
        Self {
            mode: mode.into(),
            rules: authorization.rules.into_iter().map(Into::into).collect(),
            intermediaries: texts(&authorization.intermediaries),
            tokens: authorization.tokens.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Authorization> for Authorization {
    type Error = Invalid;

    fn try_from(message: v1::Authorization) -> Result<Self, Invalid> {
        let mode = match read_enum::<Mode>("mode", message.mode)? {
            Mode::Enforce => AuthorizationMode::Enforce,
            Mode::Audit => AuthorizationMode::Audit,
        };
        let intermediaries = callers("intermediaries", message.intermediaries)?;
        let rules = each("rules", message.rules, AuthorizationRule::try_from)?;
        let tokens = message.tokens.into_iter().map(Into::into).collect();
        Ok(Self { mode, rules, intermediaries, tokens })
    }
}

impl From<AuthorizationRule> for v1::AuthorizationRule {
    fn from(rule: AuthorizationRule) -> Self {
        let has_conditions = !rule.sources.is_empty() || !rule.when.is_empty();
        let action = match rule.denies {
            true => Action::Deny,
            false if has_conditions => Action::AllowIf,
            false => Action::Allow,
        };
        let path = |path| match path {
            PathMatch::Exact(text) => Some(authorized_path::Path::Exact(text)),
            PathMatch::Prefix(text) => Some(authorized_path::Path::Prefix(text)),
            // Validated policies contain no templates or regular expressions here.
            PathMatch::Template(_) | PathMatch::Regex(_) => None,
        };
        let paths = rule.paths.into_iter().map(|one| v1::AuthorizedPath { path: path(one) });
        Self {
            name: rule.name.into(),
            action: action.into(),
            from: texts(&rule.from),
            methods: rule.methods,
            paths: paths.collect(),
            sources: rule.sources.iter().map(ToString::to_string).collect(),
            when: rule.when.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::AuthorizationRule> for AuthorizationRule {
    type Error = Invalid;

    fn try_from(message: v1::AuthorizationRule) -> Result<Self, Invalid> {
        let path = |path: v1::AuthorizedPath| match path.path {
            Some(authorized_path::Path::Exact(text)) => Ok(PathMatch::Exact(text)),
            Some(authorized_path::Path::Prefix(text)) => Ok(PathMatch::Prefix(text)),
            None => Err(Invalid::new("", "is empty", "upgrade this side, or give a path")),
        };
        Ok(Self {
            name: message.name.try_into().map_err(|e: Invalid| e.within("name"))?,
            denies: read_enum::<Action>("action", message.action)? == Action::Deny,
            from: callers("from", message.from)?,
            methods: message.methods,
            paths: each("paths", message.paths, path)?,
            sources: each("sources", message.sources, |text| text.parse::<AddressPrefix>())?,
            when: each("when", message.when, Condition::try_from)?,
        })
    }
}

impl From<AcceptedTokens> for v1::AcceptedTokens {
    fn from(AcceptedTokens { issuer, audiences }: AcceptedTokens) -> Self {
        Self { issuer, audiences }
    }
}

impl From<v1::AcceptedTokens> for AcceptedTokens {
    fn from(v1::AcceptedTokens { issuer, audiences }: v1::AcceptedTokens) -> Self {
        Self { issuer, audiences }
    }
}

impl From<Condition> for v1::AuthorizationCondition {
    fn from(condition: Condition) -> Self {
        let subject = match condition.subject {
            ConditionSubject::Claim(names) => Subject::Claim(v1::ClaimPath { names }),
            ConditionSubject::Header(name) => Subject::Header(name),
        };
        let values = condition.values.into_iter().map(|value| value.0).collect();
        Self { subject: Some(subject), excludes: condition.excludes, values }
    }
}

impl TryFrom<v1::AuthorizationCondition> for Condition {
    type Error = Invalid;

    fn try_from(message: v1::AuthorizationCondition) -> Result<Self, Invalid> {
        let subject = match message.subject {
            Some(Subject::Claim(path)) => ConditionSubject::Claim(path.names),
            Some(Subject::Header(name)) => ConditionSubject::Header(name),
            None => return Err(Invalid::new("", "has no subject", "upgrade this side, or give one")),
        };
        let values = message.values.into_iter().map(ValueMatch).collect();
        Ok(Self { subject, excludes: message.excludes, values })
    }
}

impl From<DefaultAuthorization> for v1::DefaultAuthorization {
    fn from(default: DefaultAuthorization) -> Self {
        use v1::default_authorization::Decision;
        let decision = match default {
            DefaultAuthorization::Allow => Decision::Allow,
            DefaultAuthorization::Audit => Decision::Audit,
            DefaultAuthorization::Deny => Decision::Deny,
        };
        Self { decision: decision.into() }
    }
}

impl TryFrom<v1::DefaultAuthorization> for DefaultAuthorization {
    type Error = Invalid;

    fn try_from(message: v1::DefaultAuthorization) -> Result<Self, Invalid> {
        use v1::default_authorization::Decision;
        Ok(match read_enum::<Decision>("decision", message.decision)? {
            Decision::Allow => Self::Allow,
            Decision::Audit => Self::Audit,
            Decision::Deny => Self::Deny,
        })
    }
}

fn callers(field: &str, texts: Vec<String>) -> Result<Vec<CallerMatch>, Invalid> {
    each(field, texts, CallerMatch::new)
}

fn each<T, U>(field: &str, all: Vec<T>, read: impl Fn(T) -> Result<U, Invalid>) -> Result<Vec<U>, Invalid> {
    let read = |(i, one): (usize, T)| read(one).map_err(|e| e.within(format!("{field}[{i}]")));
    all.into_iter().enumerate().map(read).collect()
}

fn texts(callers: &[CallerMatch]) -> Vec<String> {
    callers.iter().map(|caller| caller.as_str().to_owned()).collect()
}
