//! Details of one host type.

use fairmesh_console::{arguments::Format, failure::Failure, output, view_reader::View};
use fairmesh_model::HostType;
use serde_json::json;

use super::fields;

/// Prints a host type.
pub(super) fn describe(host_type: &HostType, view: &View, format: Format) -> Result<(), Failure> {
    let speed = view.hosts.value.speeds().get(host_type);
    let endpoints = view.services.iter().filter_map(|(name, one)| {
        let is_here = |of: Option<&HostType>| of == Some(host_type);
        let here =
            one.endpoints.iter().filter(|endpoint| is_here(view.hosts.value.host_type(&endpoint.value)));
        let here = here.count();
        (here > 0).then(|| (name.to_string(), json!(here)))
    });
    let endpoints: serde_json::Map<_, _> = endpoints.collect();
    if speed.is_none() && endpoints.is_empty() {
        return Err(Failure::failed_with(
            format!("there is no host type {host_type}"),
            "list host types with 'fairmesh get hosts', or declare it as 'kind: Hosts'",
        ));
    }
    let prefixes = view.hosts.value.prefixes().iter().filter(|(_, of)| of == host_type);
    let item = json!({
        "name": host_type.to_string(),
        "speed": speed,
        "prefixes": prefixes.map(|(prefix, _)| prefix.to_string()).collect::<Vec<_>>(),
        "endpoints": endpoints,
    });
    output::print_one(format, &item, &fields::text(&item))
}
