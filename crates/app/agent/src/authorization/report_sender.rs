use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{ServiceName, access::Reach};
use fairmesh_signals::{ReportOwner, ReportSource};

use super::{
    Program,
    program_permissions::{ProgramPermissions, tenants_of},
};
use crate::identity::AgentIdentity;

/// The local program that sends a report. Stored in the request's extensions; absent in a mesh without a trust domain,
/// where the agent cannot tell programs apart.
#[derive(Clone, Debug)]
pub(crate) struct ReportSender {
    pub(super) identity: AgentIdentity,
    pub(super) permissions: Arc<ProgramPermissions>,
    pub(super) program: Program,
}

impl ReportSender {
    /// The source of the report. The agent adds up reports of several tenants, so programs of each other user have
    /// room of their own, and make only services of their own tenants incomplete.
    pub(crate) fn source(&self) -> ReportSource {
        let limited = |name: String, tenants: Reach| {
            let name = Arc::<str>::from(name);
            ReportSource { sender: name.clone(), owner: ReportOwner { name, is_limited: true }, tenants }
        };
        match &self.program {
            Program::Own => ReportSource::of_mesh(),
            Program::Other(program) => {
                limited(format!("uid:{}", program.uid), self.permissions.tenants(program))
            }
            Program::Proved(id) => limited(id.to_string(), tenants_of(std::slice::from_ref(id))),
            Program::Unknown => limited(String::new(), Reach::Nothing),
        }
    }

    /// Removes the services that the program neither is nor may call from the names in a response.
    pub(crate) async fn keep_visible(&self, names: &mut Vec<String>) {
        let services = || names.iter().filter_map(|name| ServiceName::new(name).ok()).collect();
        let visible = match &self.program {
            _ if names.is_empty() => return,
            Program::Own => return,
            Program::Other(program) => self.permissions.visible(&self.identity, program, services()).await,
            Program::Proved(id) => self.permissions.visible_to_proved(id, services()).await,
            Program::Unknown => BTreeSet::new(),
        };
        names.retain(|name| ServiceName::new(name).is_ok_and(|name| visible.contains(&name)));
    }
}
