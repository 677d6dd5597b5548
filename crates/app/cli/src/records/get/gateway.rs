//! Lists of the backends of a gateway, and of the services that use it.

use fairmesh_console::{output::Listing, view_reader::View};
use fairmesh_model::{
    GatewayQuota,
    spec::{Document, GatewayBackendSpec, GatewayQuotaSpec, GatewayServiceSpec, Resource},
};
use serde_json::json;

use crate::records::value_document::placement_value;

/// One row per backend.
pub(super) fn backends(view: &View) -> Listing {
    let mut listing = Listing::new(&["NAME", "ZONE", "SERVICES", "CAPACITY", "OPEN", "REPLICAS", "REVISION"]);
    for (name, backend) in &view.gateway_backends {
        let (spec, value) = (GatewayBackendSpec::of(name, &backend.value), &backend.value);
        let services = view.services_on(name);
        let row = vec![
            name.to_string(),
            spec.zone.clone(),
            services.to_string(),
            value.capacity.to_string(),
            match (value.is_closed, value.is_sandbox) {
                (true, _) => "no",
                (false, true) => "sandbox",
                (false, false) => "yes",
            }
            .to_owned(),
            spec.replicas.join(", "),
            backend.revision.to_string(),
        ];
        let mut item = json!(spec);
        item["capacity"] = json!(value.capacity);
        item["services"] = json!(services);
        item["revision"] = json!(backend.revision);
        listing.add(row, item);
        listing.documents.push(Document::from(&Resource::GatewayBackend(name.clone(), value.clone())));
    }
    listing
}

/// One row per tenant with its own limits.
pub(super) fn quotas(view: &View) -> Listing {
    let mut listing = Listing::new(&[
        "TENANT",
        "CONNECTIONS",
        "HANDSHAKES/S",
        "REQUESTS",
        "SERVICES",
        "ROUTES",
        "BACKENDS",
        "REVISION",
    ]);
    for (tenant, quota) in &view.gateway_quotas {
        let GatewayQuota { connections, handshakes_per_second, requests, services, routes, backends } =
            quota.value;
        let limits = [connections, handshakes_per_second, requests, services, routes, backends];
        let limits = limits.map(|limit| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string()));
        let row =
            [tenant.to_string()].into_iter().chain(limits).chain([quota.revision.to_string()]).collect();
        let mut item = json!(GatewayQuotaSpec::of(tenant, &quota.value));
        item["revision"] = json!(quota.revision);
        listing.add(row, item);
        listing.documents.push(Document::from(&Resource::GatewayQuota(tenant.clone(), quota.value)));
    }
    listing
}

/// One row per service.
pub(super) fn services(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "HOME ZONE", "ASKED", "PLACED", "BACKENDS", "REVISION"]);
    for (name, one) in &view.services {
        let Some(used) = &one.gateway else { continue };
        let placed = one.placement.as_ref().map(|placement| &placement.value);
        let count = placed.map_or(0, |placement| placement.backends().count());
        let row = vec![
            name.to_string(),
            used.value.home_zone.to_string(),
            used.value.backends.to_string(),
            count.to_string(),
            placed.map_or_else(|| "-".to_owned(), ToString::to_string),
            used.revision.to_string(),
        ];
        let mut item = json!(GatewayServiceSpec::of(name, &used.value));
        item["backends"] = json!(used.value.backends);
        item["placement"] = json!(placed.map(placement_value));
        item["revision"] = json!(used.revision);
        listing.add(row, item);
        listing.documents.push(Document::from(&Resource::GatewayService(name.clone(), used.value.clone())));
    }
    listing
}
