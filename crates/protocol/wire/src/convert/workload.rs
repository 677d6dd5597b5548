//! Which programs may have the identity of a service.

use fairmesh_model::{Invalid, Label, ProgramFacts, ProgramSelector, WorkloadEntry};

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

impl From<&ProgramFacts> for v1::ProgramFacts {
    fn from(program: &ProgramFacts) -> Self {
        let read = |fact: &Result<String, String>| fact.as_ref().ok().cloned();
        Self {
            uid: program.uid,
            gid: program.gid,
            executable: read(&program.executable),
            cgroup: read(&program.cgroup),
            network_namespace: read(&program.network_namespace),
        }
    }
}

impl From<v1::ProgramFacts> for ProgramFacts {
    fn from(message: v1::ProgramFacts) -> Self {
        let read = |fact: Option<String>| fact.ok_or_else(|| "its agent cannot read it".to_owned());
        Self {
            uid: message.uid,
            gid: message.gid,
            executable: read(message.executable),
            cgroup: read(message.cgroup),
            network_namespace: read(message.network_namespace),
        }
    }
}
