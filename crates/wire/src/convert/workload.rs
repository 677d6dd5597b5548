//! Which programs may have the identity of a service.

use fairmesh_model::{Invalid, Label, ProgramSelector, WorkloadEntry};

use crate::v1;

impl From<WorkloadEntry> for v1::WorkloadEntry {
    fn from(entry: WorkloadEntry) -> Self {
        let programs = entry.programs.into_iter().map(|selector| {
            let ProgramSelector { uid, gid, executable, cgroup, network_namespace } = selector;
            v1::ProgramSelector { uid, gid, executable, cgroup, network_namespace }
        });
        Self { agents: entry.agents.into_iter().map(String::from).collect(), programs: programs.collect() }
    }
}

impl TryFrom<v1::WorkloadEntry> for WorkloadEntry {
    type Error = Invalid;

    fn try_from(message: v1::WorkloadEntry) -> Result<Self, Invalid> {
        let agents = message.agents.into_iter().map(Label::try_from).collect::<Result<_, _>>();
        let programs = message.programs.into_iter().map(|selector| {
            let v1::ProgramSelector { uid, gid, executable, cgroup, network_namespace } = selector;
            ProgramSelector { uid, gid, executable, cgroup, network_namespace }
        });
        let entry = Self { agents: agents.map_err(|e| e.within("agents"))?, programs: programs.collect() };
        entry.validate()?;
        Ok(entry)
    }
}
