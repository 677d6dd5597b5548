use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::ServiceName;
use fairmesh_signals::ReportOwner;

use super::{Program, attestor::Attestor};
use crate::identity::AgentIdentity;

/// The local program that sends a report. Stored in the request's extensions; absent in a mesh without a trust domain,
/// where the agent cannot tell programs apart.
#[derive(Clone, Debug)]
pub(crate) struct ReportSender {
    pub(super) identity: AgentIdentity,
    pub(super) attestor: Arc<Attestor>,
    pub(super) program: Program,
}

impl ReportSender {
    /// The owner of the room that the report takes. The agent adds up reports of several tenants, so that programs of
    /// other users take no room from each other.
    pub(crate) fn owner(&self) -> ReportOwner {
        let limited = |name: String| ReportOwner { name: name.into(), is_limited: true };
        match &self.program {
            Program::Own => ReportOwner::of_mesh(),
            Program::Other(program) => limited(format!("uid:{}", program.uid)),
            Program::Proved(id) => limited(id.to_string()),
            Program::Unknown => limited(String::new()),
        }
    }

    /// Removes the services that the program neither is nor may call from the names in a response.
    pub(crate) async fn keep_visible(&self, names: &mut Vec<String>) {
        let services = || names.iter().filter_map(|name| ServiceName::new(name).ok()).collect();
        let visible = match &self.program {
            _ if names.is_empty() => return,
            Program::Own => return,
            Program::Other(program) => self.attestor.visible(&self.identity, program, services()).await,
            Program::Proved(id) => self.attestor.visible_to_proved(id, services()).await,
            Program::Unknown => BTreeSet::new(),
        };
        names.retain(|name| ServiceName::new(name).is_ok_and(|name| visible.contains(&name)));
    }
}
