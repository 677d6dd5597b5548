use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{AcceptedTokensSpec, ConditionSpec, PathSpec, Resource, value_text::read};
use crate::{
    AddressPrefix, Authorization, AuthorizationMode, AuthorizationRule, CallerMatch, DefaultAuthorization,
    Invalid, ServiceName,
};

/// Which callers may use a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorizationSpec {
    /// `enforce` or `audit`: how calls that no rule allows are handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Rules. A call needs a rule that allows it, and no rule that denies it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// Callers that may name another caller in the header `x-fairmesh-caller`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intermediaries: Vec<String>,
    /// End user tokens that the service accepts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<AcceptedTokensSpec>,
}

/// A document of kind Authorization: which callers may use a service, or the default for services without rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthorizationDocumentSpec {
    /// The service, as `tenant/service`. Without it, the document sets the default for services without rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// `allow`, `audit` or `deny`: the default for services without rules. Only in documents without a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// `enforce` or `audit`: how calls that no rule allows are handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Rules. A call needs a rule that allows it, and no rule that denies it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// Callers that may name another caller in the header `x-fairmesh-caller`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intermediaries: Vec<String>,
    /// End user tokens that the service accepts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<AcceptedTokensSpec>,
}

/// A rule: conditions on calls, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleSpec {
    /// The rule's name.
    pub name: String,
    /// `allow` or `deny`: what the rule does with matching calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Callers, one of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// Methods, one of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Paths, one of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSpec>,
    /// Addresses and address blocks, one of which must contain the connection's source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_addresses: Vec<String>,
    /// Conditions on claims and headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<ConditionSpec>,
}

/// The default for services without rules.
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
        Ok(Authorization {
            mode,
            rules: each("rules", &self.rules, RuleSpec::validate)?,
            intermediaries: callers("intermediaries", &self.intermediaries)?,
            tokens: self.tokens.iter().map(AcceptedTokensSpec::validate).collect(),
        })
    }

    /// The inverse of validation.
    pub fn of(authorization: &Authorization) -> Self {
        let is_audit = authorization.mode == AuthorizationMode::Audit;
        Self {
            mode: is_audit.then(|| "audit".to_owned()),
            rules: authorization.rules.iter().map(RuleSpec::of).collect(),
            intermediaries: texts(&authorization.intermediaries),
            tokens: authorization.tokens.iter().map(AcceptedTokensSpec::of).collect(),
        }
    }
}

impl AuthorizationDocumentSpec {
    /// Validates the document.
    ///
    /// # Errors
    /// If the document is for both a service and the mesh, or for neither.
    pub fn validate(&self) -> Result<Resource, Invalid> {
        let Self { service, default, mode, rules, intermediaries, tokens } = self.clone();
        let rules = AuthorizationSpec { mode, rules, intermediaries, tokens };
        match (service, default) {
            (Some(service), None) => {
                let service = service.parse().map_err(|e: Invalid| e.within("service"))?;
                let rules = rules.validate()?;
                Authorization::validate(&rules)?;
                Ok(Resource::ServiceAuthorization(service, rules))
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
        let AuthorizationSpec { mode, rules, intermediaries, tokens } = AuthorizationSpec::of(authorization);
        Self { service: Some(service.to_string()), default: None, mode, rules, intermediaries, tokens }
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
        Ok(AuthorizationRule {
            name: read("name", &self.name)?,
            denies,
            from: callers("from", &self.from)?,
            methods: self.methods.clone(),
            paths: each("paths", &self.paths, PathSpec::validate)?,
            sources: each("sourceAddresses", &self.source_addresses, |text| source(text))?,
            when: each("when", &self.when, ConditionSpec::validate)?,
        })
    }

    fn of(rule: &AuthorizationRule) -> Self {
        Self {
            name: rule.name.to_string(),
            action: rule.denies.then(|| "deny".to_owned()),
            from: texts(&rule.from),
            methods: rule.methods.clone(),
            paths: rule.paths.iter().map(PathSpec::of).collect(),
            source_addresses: rule.sources.iter().map(ToString::to_string).collect(),
            when: rule.when.iter().map(ConditionSpec::of).collect(),
        }
    }
}

impl DefaultAuthorizationSpec {
    /// Validates the default.
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
    each(field, texts, |text| CallerMatch::new(text.as_str()))
}

fn texts(callers: &[CallerMatch]) -> Vec<String> {
    callers.iter().map(|caller| caller.as_str().to_owned()).collect()
}

fn each<T, U>(field: &str, all: &[T], read: impl Fn(&T) -> Result<U, Invalid>) -> Result<Vec<U>, Invalid> {
    let read = |(i, one): (usize, &T)| read(one).map_err(|e| e.within(format!("{field}[{i}]")));
    all.iter().enumerate().map(read).collect()
}

/// Parses an address block or a single address.
fn source(text: &str) -> Result<AddressPrefix, Invalid> {
    match text.parse::<IpAddr>() {
        Ok(address) => AddressPrefix::new(address, if address.is_ipv4() { 32 } else { 128 }),
        Err(_) => text.parse(),
    }
}

fn unknown(field: &str, text: &str, hint: &str) -> Invalid {
    Invalid::new(field, format!("'{text}' is unknown"), hint)
}
