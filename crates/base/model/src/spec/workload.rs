use serde::{Deserialize, Serialize};

use super::value_text::read;
use crate::{Invalid, ProgramSelector, ServiceName, WorkloadEntry};

/// Which programs may have the identity of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadSpec {
    /// The service, as `tenant/service`.
    pub service: String,
    /// Names of the agents that may vouch for the service. By default all agents that may vouch for its tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Selectors of programs. A program of another user than the agent's must match one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramSpec>,
}

/// Conditions on a program, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProgramSpec {
    /// The effective user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The effective group id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The path of the executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// The cgroup (v2) of the program, or an ancestor of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The network namespace: a name in `/run/netns`, or `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_namespace: Option<String>,
}

impl WorkloadSpec {
    /// Validates the workload.
    pub fn validate(&self) -> Result<(ServiceName, WorkloadEntry), Invalid> {
        let service = read("service", &self.service)?;
        let agents = self.agents.iter().enumerate();
        let agents =
            agents.map(|(i, name)| read("", name).map_err(|e: Invalid| e.within(format!("agents[{i}]"))));
        let programs = self.programs.iter().cloned().map(ProgramSelector::from).collect();
        let entry = WorkloadEntry { agents: agents.collect::<Result<_, _>>()?, programs };
        entry.validate()?;
        Ok((service, entry))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(service: &ServiceName, entry: &WorkloadEntry) -> Self {
        Self {
            service: service.to_string(),
            agents: entry.agents.iter().map(ToString::to_string).collect(),
            programs: entry.programs.iter().cloned().map(ProgramSpec::from).collect(),
        }
    }
}

impl From<ProgramSpec> for ProgramSelector {
    fn from(spec: ProgramSpec) -> Self {
        let ProgramSpec { uid, gid, executable, cgroup, network_namespace } = spec;
        Self { uid, gid, executable, cgroup, network_namespace }
    }
}

impl From<ProgramSelector> for ProgramSpec {
    fn from(selector: ProgramSelector) -> Self {
        let ProgramSelector { uid, gid, executable, cgroup, network_namespace } = selector;
        Self { uid, gid, executable, cgroup, network_namespace }
    }
}
