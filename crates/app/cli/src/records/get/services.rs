//! Lists of services and endpoints.

use fairmesh_console::{
    cell_text::type_and_protocol,
    output::Listing,
    view_reader::{At, ServiceView, View},
};
use fairmesh_model::{
    Endpoint, ServiceName,
    spec::{Document, Resource},
};
use fairmesh_views::{DisplayedState, states};
use serde_json::{Value, json};

/// One row per service.
pub(super) fn services(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "TYPE", "PROTOCOL", "SERVING", "POLICY", "SHARDS"]);
    for (name, one) in &view.services {
        let (kind, protocol) = match &one.service {
            Some(At { value, .. }) => type_and_protocol(value),
            None => ("not declared".into(), String::new()),
        };
        let states = states(one, view);
        let serving = states.iter().filter(|state| state.state == "serving").count();
        let unhealthy = states.iter().filter(|state| state.state == "unhealthy").count();
        listing.add(
            vec![
                name.to_string(),
                kind.clone(),
                protocol.clone(),
                format!("{serving}/{}", one.endpoints.len()),
                if one.policy.is_some() { "written" } else { "default" }.into(),
                one.shards.as_ref().map_or_else(String::new, |map| map.shards.len().to_string()),
            ],
            item(name, one, (serving, unhealthy)),
        );
        if let Some(service) = &one.service {
            listing.documents.push(Document::from(&Resource::Service(name.clone(), service.value.clone())));
        }
    }
    listing
}

fn item(name: &ServiceName, one: &ServiceView, (serving, unhealthy): (usize, usize)) -> Value {
    let declared = one.service.as_ref();
    json!({
        "name": name.to_string(),
        "declared": declared.is_some(),
        "type": declared.map(|service| service.value.kind),
        "protocol": declared.map(|service| service.value.protocol),
        "virtualAddress": declared.and_then(|service| service.value.virtual_address).map(|address| address.to_string()),
        "identity": declared.and_then(|service| service.value.identity.as_ref()).map(|id| id.to_string()),
        "revision": declared.map(|service| service.revision),
        "endpoints": one.endpoints.len(),
        "serving": serving,
        "unhealthy": unhealthy,
        "policy": one.policy.is_some(),
        "shards": one.shards.as_ref().map(|map| map.shards.len()),
    })
}

/// One row per endpoint, of every service.
pub(super) fn all_endpoints(view: &View) -> Listing {
    let mut listing = Listing::new(&[
        "SERVICE", "INSTANCE", "ADDRESS", "REGION", "ZONE", "STATE", "WEIGHT", "LEASE", "WHY",
    ]);
    for (name, one) in &view.services {
        for (endpoint, state) in one.endpoints.iter().zip(states(one, view)) {
            let mut row = vec![name.to_string()];
            row.extend(endpoint_row(&endpoint.value, &state));
            listing.add(row, endpoint_item(name, endpoint, &state));
        }
        if !one.endpoints.is_empty() {
            listing.documents.push(endpoints_document(name, one));
        }
    }
    listing
}

/// The list for one service, without the column of its name.
pub(crate) fn endpoints(name: &ServiceName, one: &ServiceView, view: &View) -> Listing {
    let mut listing =
        Listing::new(&["INSTANCE", "ADDRESS", "REGION", "ZONE", "STATE", "WEIGHT", "LEASE", "WHY"]);
    for (endpoint, state) in one.endpoints.iter().zip(states(one, view)) {
        listing.add(endpoint_row(&endpoint.value, &state), endpoint_item(name, endpoint, &state));
    }
    listing
}

fn endpoints_document(name: &ServiceName, one: &ServiceView) -> Document {
    let endpoints = one.endpoints.iter().map(|endpoint| endpoint.value.clone()).collect();
    Document::from(&Resource::Endpoints(name.clone(), endpoints))
}

fn endpoint_row(endpoint: &Endpoint, state: &DisplayedState<'_>) -> Vec<String> {
    vec![
        endpoint.instance.to_string(),
        endpoint.address.to_string(),
        endpoint.location.region.to_string(),
        endpoint.location.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
        state.state.to_owned(),
        endpoint.weight.to_string(),
        endpoint.lease.map_or_else(|| "none".into(), fairmesh_model::spec::write_duration),
        state.reason(),
    ]
}

fn endpoint_item(service: &ServiceName, endpoint: &At<Endpoint>, state: &DisplayedState<'_>) -> Value {
    let mut item = json!(fairmesh_model::spec::EndpointSpec::of(&endpoint.value));
    item["service"] = json!(service.to_string());
    // YAML omits the default state; JSON has it explicitly.
    item["state"] = json!(state.state);
    item["health"] = state.health();
    item["why"] = json!(Some(state.reason()).filter(|why| !why.is_empty()));
    item["weight"] = json!(endpoint.value.weight);
    item["revision"] = json!(endpoint.revision);
    item
}
