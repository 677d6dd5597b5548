use fairmesh_model::{
    Authorization, AuthorizationMode, AuthorizationRule, CallerMatch, DefaultAuthorization, Invalid,
    PathMatch,
};

use crate::{
    convert::read_enum,
    v1::{self, authorization::Mode, authorization_rule::Action, authorized_path},
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
        let rules = message.rules.into_iter().enumerate().map(|(i, rule)| {
            AuthorizationRule::try_from(rule).map_err(|e: Invalid| e.within(format!("rules[{i}]")))
        });
        let intermediaries = callers("intermediaries", message.intermediaries)?;
        Ok(Self { mode, rules: rules.collect::<Result<_, _>>()?, intermediaries })
    }
}

impl From<AuthorizationRule> for v1::AuthorizationRule {
    fn from(rule: AuthorizationRule) -> Self {
        let action = if rule.denies { Action::Deny } else { Action::Allow };
        let path = |path| match path {
            PathMatch::Exact(text) => Some(authorized_path::Path::Exact(text)),
            PathMatch::Prefix(text) => Some(authorized_path::Path::Prefix(text)),
            // Validated policies have none.
            PathMatch::Template(_) | PathMatch::Regex(_) => None,
        };
        let paths = rule.paths.into_iter().map(|one| v1::AuthorizedPath { path: path(one) });
        Self {
            name: rule.name.into(),
            action: action.into(),
            from: texts(&rule.from),
            methods: rule.methods,
            paths: paths.collect(),
        }
    }
}

impl TryFrom<v1::AuthorizationRule> for AuthorizationRule {
    type Error = Invalid;

    fn try_from(message: v1::AuthorizationRule) -> Result<Self, Invalid> {
        let path = |(i, path): (usize, v1::AuthorizedPath)| match path.path {
            Some(authorized_path::Path::Exact(text)) => Ok(PathMatch::Exact(text)),
            Some(authorized_path::Path::Prefix(text)) => Ok(PathMatch::Prefix(text)),
            None => Err(Invalid::new(format!("paths[{i}]"), "is empty", "upgrade this side, or give a path")),
        };
        Ok(Self {
            name: message.name.try_into().map_err(|e: Invalid| e.within("name"))?,
            denies: read_enum::<Action>("action", message.action)? == Action::Deny,
            from: callers("from", message.from)?,
            methods: message.methods,
            paths: message.paths.into_iter().enumerate().map(path).collect::<Result<_, _>>()?,
        })
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
    let read =
        |(i, text): (usize, String)| CallerMatch::new(text).map_err(|e| e.within(format!("{field}[{i}]")));
    texts.into_iter().enumerate().map(read).collect()
}

fn texts(callers: &[CallerMatch]) -> Vec<String> {
    callers.iter().map(|caller| caller.as_str().to_owned()).collect()
}
