//! List of the programs that may have the identity of a service.

use fairmesh_console::{output::Listing, view_reader::View};
use fairmesh_model::{
    ProgramSelector,
    spec::{Document, Resource, WorkloadSpec},
};
use serde_json::json;

/// One row per record.
pub(super) fn workloads(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "AGENTS", "PROGRAMS", "REVISION"]);
    for (name, one) in &view.services {
        let Some(workload) = &one.workload else { continue };
        let mut item = json!(WorkloadSpec::of(name, &workload.value));
        item["revision"] = json!(workload.revision);
        let agents: Vec<_> = workload.value.agents.iter().map(ToString::to_string).collect();
        let programs: Vec<_> = workload.value.programs.iter().map(words).collect();
        let or = |texts: Vec<String>, none: &str, between| match texts.is_empty() {
            true => none.to_owned(),
            false => texts.join(between),
        };
        let row = vec![
            name.to_string(),
            or(agents, "all", ", "),
            or(programs, "of the agents' users", "; "),
            workload.revision.to_string(),
        ];
        listing.add(row, item);
        listing.documents.push(Document::from(&Resource::Workload(name.clone(), workload.value.clone())));
    }
    listing
}

fn words(selector: &ProgramSelector) -> String {
    let ProgramSelector { uid, gid, executable, cgroup, network_namespace } = selector;
    let conditions = [
        uid.map(|uid| format!("uid {uid}")),
        gid.map(|gid| format!("gid {gid}")),
        executable.as_ref().map(|path| format!("executable {path}")),
        cgroup.as_ref().map(|path| format!("cgroup {path}")),
        network_namespace.as_ref().map(|name| format!("network namespace {name}")),
    ];
    conditions.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
