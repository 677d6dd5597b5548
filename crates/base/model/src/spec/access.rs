use serde::{Deserialize, Serialize};

use super::value_text::read;
use crate::{
    Invalid, Label,
    access::{AccessRole, RoleBinding, Subject, UidRange, WorkloadBounds},
};

/// A role and the subjects that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoleBindingSpec {
    /// The name of the binding.
    pub name: String,
    /// `viewer`, `operator`, `registrar` or `admin`.
    pub role: String,
    /// For viewers, operators and authorizers: the tenants. All tenants by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// For registrars: the services, as `tenant/service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Subjects: identities or patterns of identities, `uid:N`, `user:NAME`, `group:NAME`, or `anonymous`.
    pub subjects: Vec<String>,
    /// For operators: the programs to which they may give identities of their services. None by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<WorkloadBoundsSpec>,
}

/// Bounds on programs, by user or cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadBoundsSpec {
    /// Users, such as `1001` or `1000-1999`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uids: Vec<UidsSpec>,
    /// cgroups (v2), including all cgroups below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<String>,
    /// Names of the agents that may vouch for the programs. By default all agents that may vouch for the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
}

/// One user, or a range of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum UidsSpec {
    /// A single user id.
    One(u32),
    /// A range such as `1000-1999`.
    Range(String),
}

impl RoleBindingSpec {
    /// Validates the role binding.
    pub fn validate(&self) -> Result<(Label, RoleBinding), Invalid> {
        let binding = RoleBinding {
            role: AccessRole::parse(&self.role)?,
            tenants: each("tenants", &self.tenants, |text| read("", text))?,
            services: each("services", &self.services, |text| read("", text))?,
            subjects: each("subjects", &self.subjects, |text| Subject::parse(text))?,
            workloads: self
                .workloads
                .as_ref()
                .map(WorkloadBoundsSpec::validate)
                .transpose()
                .map_err(|e| e.within("workloads"))?,
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
            workloads: binding.workloads.as_ref().map(WorkloadBoundsSpec::of),
        }
    }
}

impl WorkloadBoundsSpec {
    fn validate(&self) -> Result<WorkloadBounds, Invalid> {
        let uids = each("uids", &self.uids, |uids| match uids {
            UidsSpec::One(uid) => Ok(UidRange { first: *uid, last: *uid }),
            UidsSpec::Range(text) => UidRange::parse(text),
        });
        Ok(WorkloadBounds {
            uids: uids?,
            cgroups: self.cgroups.clone(),
            agents: each("agents", &self.agents, |text| read("", text))?,
        })
    }

    fn of(bounds: &WorkloadBounds) -> Self {
        let uids = bounds.uids.iter().map(|range| match range.first == range.last {
            true => UidsSpec::One(range.first),
            false => UidsSpec::Range(range.to_string()),
        });
        Self {
            uids: uids.collect(),
            cgroups: bounds.cgroups.clone(),
            agents: bounds.agents.iter().map(ToString::to_string).collect(),
        }
    }
}

fn each<S, T>(field: &str, list: &[S], parse: impl Fn(&S) -> Result<T, Invalid>) -> Result<Vec<T>, Invalid> {
    let parse = |(i, one): (usize, &S)| parse(one).map_err(|e| e.within(format!("{field}[{i}]")));
    list.iter().enumerate().map(parse).collect()
}
