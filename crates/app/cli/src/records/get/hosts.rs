//! List of host types.

use std::collections::BTreeMap;

use fairmesh_console::{output::Listing, view_reader::View};
use fairmesh_model::{
    FULL_SPEED, HostType,
    spec::{Document, Resource},
};
use serde_json::json;

/// One row per declared or used host type, and one for endpoints of unknown type.
pub(super) fn hosts(view: &View) -> Listing {
    let mut counts: BTreeMap<Option<&HostType>, usize> =
        view.hosts.value.speeds().keys().map(|host_type| (Some(host_type), 0)).collect();
    for endpoint in view.services.values().flat_map(|service| &service.endpoints) {
        *counts.entry(view.hosts.value.host_type(&endpoint.value)).or_default() += 1;
    }
    let mut listing = Listing::new(&["HOST TYPE", "SPEED", "PREFIXES", "ENDPOINTS"]);
    for (host_type, endpoints) in counts {
        let speed = host_type.and_then(|host_type| view.hosts.value.speeds().get(host_type));
        let prefixes = view.hosts.value.prefixes().iter().filter(|(_, of)| Some(of) == host_type);
        let prefixes: Vec<_> = prefixes.map(|(prefix, _)| prefix.to_string()).collect();
        let declared = if speed.is_some() { "" } else { " (not declared)" };
        listing.add(
            vec![
                host_type.map_or_else(|| "none".into(), ToString::to_string),
                format!("{}{declared}", speed.copied().unwrap_or(FULL_SPEED)),
                prefixes.join(", "),
                endpoints.to_string(),
            ],
            json!({
                "name": host_type.map(ToString::to_string),
                "declared": speed.is_some(),
                "speed": speed.copied().unwrap_or(FULL_SPEED),
                "prefixes": prefixes,
                "endpoints": endpoints,
            }),
        );
    }
    if !view.hosts.value.is_empty() {
        listing.documents.push(Document::from(&Resource::Hosts(view.hosts.value.clone())));
    }
    listing
}
