use serde::{Deserialize, Serialize};

use super::{PathSpec, Resource, text::read};
use crate::{
    Authorization, AuthorizationMode, AuthorizationRule, CallerMatch, DefaultAuthorization, Invalid,
    ServiceName,
};

/// Which callers may use a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorizationSpec {
    /// `enforce` or `audit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Rules; a call needs one that allows it, and none that denies it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// Callers whose `x-fairmesh-caller` counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intermediaries: Vec<String>,
}

/// A document of kind Authorization: who may call a service, or what applies to services without rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorizationDocumentSpec {
    /// The service, as `tenant/service`; without it, the document is about services without rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// `allow`, `audit` or `deny`: what applies to services without rules; of a document without a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// `enforce` or `audit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Rules; a call needs one that allows it, and none that denies it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// Callers whose `x-fairmesh-caller` counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intermediaries: Vec<String>,
}

/// Conditions on calls, all of which have to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleSpec {
    /// Its name.
    pub name: String,
    /// `allow` or `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Any of these callers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// Any of these methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Any of these paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSpec>,
}

/// What applies to services without rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultAuthorizationSpec {
    /// `allow`, `audit` or `deny`.
    pub default: String,
}

impl AuthorizationSpec {
    pub(super) fn validate(&self) -> Result<Authorization, Invalid> {
        let mode = match self.mode.as_deref() {
            None | Some("enforce") => AuthorizationMode::Enforce,
            Some("audit") => AuthorizationMode::Audit,
            Some(other) => return Err(unknown("mode", other, "write enforce or audit")),
        };
        let rules = self.rules.iter().enumerate();
        let rules = rules.map(|(i, rule)| rule.validate().map_err(|e| e.within(format!("rules[{i}]"))));
        Ok(Authorization {
            mode,
            rules: rules.collect::<Result<_, _>>()?,
            intermediaries: callers("intermediaries", &self.intermediaries)?,
        })
    }

    /// The inverse of validation.
    pub fn of(authorization: &Authorization) -> Self {
        let is_audit = authorization.mode == AuthorizationMode::Audit;
        Self {
            mode: is_audit.then(|| "audit".to_owned()),
            rules: authorization.rules.iter().map(RuleSpec::of).collect(),
            intermediaries: texts(&authorization.intermediaries),
        }
    }
}

impl AuthorizationDocumentSpec {
    /// Validates.
    ///
    /// # Errors
    /// For a document of both a service and the mesh, or of neither.
    pub fn validate(&self) -> Result<Resource, Invalid> {
        let Self { service, default, mode, rules, intermediaries } = self.clone();
        let rules = AuthorizationSpec { mode, rules, intermediaries };
        match (service, default) {
            (Some(service), None) => {
                let service = service.parse().map_err(|e: Invalid| e.within("service"))?;
                Ok(Resource::ServiceAuthorization(service, rules.validate()?))
            }
            (None, Some(default)) if rules == AuthorizationSpec::default() => {
                DefaultAuthorizationSpec { default }.validate().map(Resource::Authorization)
            }
            (Some(_), Some(_)) => {
                let hint = "write two documents: one with 'service' and its rules, one with 'default'";
                Err(Invalid::new(
                    "default",
                    "applies to services without rules, and this has a service",
                    hint,
                ))
            }
            (None, _) => {
                let hint =
                    "add 'service: tenant/service' for rules, or 'default: deny' for services without any";
                Err(Invalid::new("service", "is missing", hint))
            }
        }
    }

    /// The inverse of validation, for a service.
    pub fn of(service: &ServiceName, authorization: &Authorization) -> Self {
        let AuthorizationSpec { mode, rules, intermediaries } = AuthorizationSpec::of(authorization);
        Self { service: Some(service.to_string()), default: None, mode, rules, intermediaries }
    }

    /// The inverse of validation, for services without rules.
    pub fn of_default(default: DefaultAuthorization) -> Self {
        let DefaultAuthorizationSpec { default } = DefaultAuthorizationSpec::of(default);
        Self { default: Some(default), ..Self::default() }
    }
}

impl RuleSpec {
    fn validate(&self) -> Result<AuthorizationRule, Invalid> {
        let denies = match self.action.as_deref() {
            None | Some("allow") => false,
            Some("deny") => true,
            Some(other) => return Err(unknown("action", other, "write allow or deny")),
        };
        let paths = self.paths.iter().enumerate();
        let paths = paths.map(|(i, path)| path.validate().map_err(|e| e.within(format!("paths[{i}]"))));
        Ok(AuthorizationRule {
            name: read("name", &self.name)?,
            denies,
            from: callers("from", &self.from)?,
            methods: self.methods.clone(),
            paths: paths.collect::<Result<_, _>>()?,
        })
    }

    fn of(rule: &AuthorizationRule) -> Self {
        Self {
            name: rule.name.to_string(),
            action: rule.denies.then(|| "deny".to_owned()),
            from: texts(&rule.from),
            methods: rule.methods.clone(),
            paths: rule.paths.iter().map(PathSpec::of).collect(),
        }
    }
}

impl DefaultAuthorizationSpec {
    /// Validates.
    pub fn validate(&self) -> Result<DefaultAuthorization, Invalid> {
        match self.default.as_str() {
            "allow" => Ok(DefaultAuthorization::Allow),
            "audit" => Ok(DefaultAuthorization::Audit),
            "deny" => Ok(DefaultAuthorization::Deny),
            other => Err(unknown("default", other, "write allow, audit or deny")),
        }
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(default: DefaultAuthorization) -> Self {
        let default = match default {
            DefaultAuthorization::Allow => "allow",
            DefaultAuthorization::Audit => "audit",
            DefaultAuthorization::Deny => "deny",
        };
        Self { default: default.to_owned() }
    }
}

fn callers(field: &str, texts: &[String]) -> Result<Vec<CallerMatch>, Invalid> {
    let read = |(i, text): (usize, &String)| {
        CallerMatch::new(text.as_str()).map_err(|e| e.within(format!("{field}[{i}]")))
    };
    texts.iter().enumerate().map(read).collect()
}

fn texts(callers: &[CallerMatch]) -> Vec<String> {
    callers.iter().map(|caller| caller.as_str().to_owned()).collect()
}

fn unknown(field: &str, text: &str, hint: &str) -> Invalid {
    Invalid::new(field, format!("'{text}' is unknown"), hint)
}
