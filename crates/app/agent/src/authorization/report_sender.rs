use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{ServiceName, access::Reach};
use fairmesh_signals::{ReportOwner, ReportSource};

use super::{
    Program,
    program_permissions::{ProgramPermissions, tenants_of},
};
use crate::identity::AgentIdentity;

/// The local program that sends a report. Stored in the request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct ReportSender {
    /// The identity of the agent. `None` in a mesh without a trust domain, which limits no sender.
    pub(super) member: Option<AgentIdentity>,
    pub(super) permissions: Arc<ProgramPermissions>,
    pub(super) program: Program,
}

impl ReportSender {
    /// The source of the report. The agent adds up reports of several tenants, so programs of each other user have
    /// room of their own, and make only services of their own tenants incomplete.
    pub(crate) fn source(&self) -> ReportSource {
        let sender = self.name();
        let tenants = match &self.program {
            _ if self.member.is_none() => return ReportSource { sender, ..ReportSource::of_mesh() },
            Program::Own => return ReportSource::of_mesh(),
            Program::Other(program) => self.permissions.tenants(program),
            Program::Proved(id) => tenants_of(std::slice::from_ref(id)),
            Program::Unknown => Reach::Nothing,
        };
        ReportSource {
            sender: sender.clone(),
            owner: ReportOwner { name: sender, is_limited: true },
            tenants,
        }
    }

    /// The name of the sender, which stays the same when the mesh gets a trust domain.
    fn name(&self) -> Arc<str> {
        match &self.program {
            Program::Other(program) => format!("uid:{}", program.uid).into(),
            Program::Proved(id) => id.to_string().into(),
            Program::Own | Program::Unknown => "".into(),
        }
    }

    /// Removes the services that the program neither is nor may call from the names in a response.
    pub(crate) async fn keep_visible(&self, names: &mut Vec<String>) {
        let services = || names.iter().filter_map(|name| ServiceName::new(name).ok()).collect();
        let Some(identity) = self.member.as_ref().filter(|_| !names.is_empty()) else { return };
        let visible = match &self.program {
            Program::Own => return,
            Program::Other(program) => self.permissions.visible(identity, program, services()).await,
            Program::Proved(id) => self.permissions.visible_to_proved(id, services()).await,
            Program::Unknown => BTreeSet::new(),
        };
        names.retain(|name| ServiceName::new(name).is_ok_and(|name| visible.contains(&name)));
    }
}
