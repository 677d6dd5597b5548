use serde::{Deserialize, Serialize};

use super::text::read;
use crate::{
    Invalid, Label,
    access::{AccessRole, RoleBinding, Subject},
};

/// Who may do what with the records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoleBindingSpec {
    /// Its name.
    pub name: String,
    /// `viewer`, `operator`, `registrar` or `admin`.
    pub role: String,
    /// Of viewers and operators; by default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// Of registrars, as `tenant/service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Identities and patterns of them, `uid:N`, `user:NAME`, `group:NAME`, `anonymous`.
    pub subjects: Vec<String>,
}

impl RoleBindingSpec {
    /// Validates.
    pub fn validate(&self) -> Result<(Label, RoleBinding), Invalid> {
        fn each<T>(
            field: &str,
            texts: &[String],
            parse: impl Fn(&String) -> Result<T, Invalid>,
        ) -> Result<Vec<T>, Invalid> {
            let parse =
                |(i, text): (usize, &String)| parse(text).map_err(|e| e.within(format!("{field}[{i}]")));
            texts.iter().enumerate().map(parse).collect()
        }
        let binding = RoleBinding {
            role: AccessRole::parse(&self.role)?,
            tenants: each("tenants", &self.tenants, |text| read("", text))?,
            services: each("services", &self.services, |text| read("", text))?,
            subjects: each("subjects", &self.subjects, |text| Subject::parse(text))?,
        };
        binding.validate()?;
        Ok((read("name", &self.name)?, binding))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(name: &Label, binding: &RoleBinding) -> Self {
        Self {
            name: name.to_string(),
            role: binding.role.as_str().to_owned(),
            tenants: binding.tenants.iter().map(ToString::to_string).collect(),
            services: binding.services.iter().map(ToString::to_string).collect(),
            subjects: binding.subjects.iter().map(ToString::to_string).collect(),
        }
    }
}
