use serde::{Deserialize, Serialize};

use crate::{AcceptedTokens, Condition, ConditionSubject, Invalid, ValueMatch};

/// End user tokens that a service accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcceptedTokensSpec {
    /// The issuer, exactly as in the `iss` claim. It must be known to `fairmesh identity token-issuers`.
    pub issuer: String,
    /// Audiences. A token must name at least one in its `aud` claim.
    pub audiences: Vec<String>,
}

/// A condition on a claim of the token or on a header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConditionSpec {
    /// The claim that is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimSpec>,
    /// The header that is compared, in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Values, one of which must match. A trailing `*` matches any rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Values, none of which may match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_values: Vec<String>,
}

/// The name of a claim, or the path of a nested claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ClaimSpec {
    /// A top-level claim.
    Name(String),
    /// The names from the outermost to the innermost, such as `[realm_access, roles]`.
    Path(Vec<String>),
}

impl AcceptedTokensSpec {
    pub(super) fn validate(&self) -> AcceptedTokens {
        AcceptedTokens { issuer: self.issuer.clone(), audiences: self.audiences.clone() }
    }

    pub(super) fn of(tokens: &AcceptedTokens) -> Self {
        Self { issuer: tokens.issuer.clone(), audiences: tokens.audiences.clone() }
    }
}

impl ConditionSpec {
    pub(super) fn validate(&self) -> Result<Condition, Invalid> {
        let subject = match (&self.claim, &self.header) {
            (Some(ClaimSpec::Name(name)), None) => ConditionSubject::Claim(vec![name.clone()]),
            (Some(ClaimSpec::Path(names)), None) => ConditionSubject::Claim(names.clone()),
            (None, Some(name)) => ConditionSubject::Header(name.clone()),
            _ => return Err(Invalid::new("", "has no subject, or two", "give one of claim and header")),
        };
        let values = match (self.values.is_empty(), self.not_values.is_empty()) {
            (false, true) => &self.values,
            (true, false) => &self.not_values,
            _ => {
                return Err(Invalid::new(
                    "",
                    "has no values, or two lists",
                    "give one of values and notValues",
                ));
            }
        };
        let values = values.iter().cloned().map(ValueMatch).collect();
        Ok(Condition { subject, excludes: self.values.is_empty(), values })
    }

    pub(super) fn of(condition: &Condition) -> Self {
        let (claim, header) = match &condition.subject {
            ConditionSubject::Claim(names) => match &names[..] {
                [name] => (Some(ClaimSpec::Name(name.clone())), None),
                names => (Some(ClaimSpec::Path(names.to_vec())), None),
            },
            ConditionSubject::Header(name) => (None, Some(name.clone())),
        };
        let mut values: Vec<_> = condition.values.iter().map(|value| value.0.clone()).collect();
        let not_values = if condition.excludes { std::mem::take(&mut values) } else { Vec::new() };
        Self { claim, header, values, not_values }
    }
}
