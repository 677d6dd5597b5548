//! gRPC's Route Lookup Service (RLS), for gRPC clients with the RLS load-balancing policy.
//!
//! The client's configuration maps headers to the keys `service`, `key` and `role`. These clients do not report
//! results, so their leases simply expire.

use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{Identity, Invalid, Role, ServiceName};
use fairmesh_wire::{
    grpc_lookup::{RouteLookupRequest, RouteLookupResponse, route_lookup_service_server::RouteLookupService},
    identity_of,
};
use tonic::{Request, Response, Status};

use crate::{
    metrics::add,
    picker::{PickQuery, Picker},
    service::invalid_argument,
};

/// Maximum number of targets per response: one, and two for failover.
const TARGETS: usize = 3;

/// Serves gRPC clients.
#[derive(Clone, Debug)]
pub(crate) struct RouteLookups(pub(crate) Arc<Picker>);

#[tonic::async_trait]
impl RouteLookupService for RouteLookups {
    async fn route_lookup(
        &self,
        request: Request<RouteLookupRequest>,
    ) -> Result<Response<RouteLookupResponse>, Status> {
        let caller = identity_of(&request);
        let request = request.into_inner();
        if !matches!(request.target_type.as_str(), "" | "grpc") {
            let message = format!("target type '{}' is not supported; send 'grpc'", request.target_type);
            return Err(Status::invalid_argument(message));
        }
        let query = pick_query(caller, &request.key_map).map_err(|problem| invalid_argument(&problem))?;
        let picked = self.0.pick(&query).await?;
        add(&self.0.metrics.lookups, 1);
        Ok(Response::new(RouteLookupResponse {
            targets: picked.leases.iter().map(|(_, target)| target.address.to_string()).collect(),
            header_data: header_data(&query, &picked.service, picked.revision),
        }))
    }
}

fn pick_query(caller: Identity, keys: &BTreeMap<String, String>) -> Result<PickQuery, Invalid> {
    let of = |name: &str| keys.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let missing =
        || Invalid::new("key_map", "it has no 'service'", "send tenant/service, or service.tenant as a host");
    Ok(PickQuery {
        caller,
        service: service(of("service").ok_or_else(missing)?).map_err(|problem| problem.within("service"))?,
        key: of("key").map(str::parse).transpose().map_err(|problem: Invalid| problem.within("key"))?,
        role: of("role").map(Role::new).transpose().map_err(|problem| problem.within("role"))?,
        endpoints: TARGETS,
        avoid: Vec::new(),
    })
}

/// Parses `tenant/service`, or the host form `service.tenant`, with or without a port.
fn service(text: &str) -> Result<ServiceName, Invalid> {
    if text.contains('/') {
        return ServiceName::new(text);
    }
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    match host.rsplit_once('.') {
        Some((service, tenant)) => ServiceName::new(format!("{tenant}/{service}")),
        None => ServiceName::new(text),
    }
}

/// Returns the header data that the client sends to the server: key, role and revision of the pick.
fn header_data(query: &PickQuery, service: &ServiceName, revision: u64) -> String {
    let mut text = format!("service={service};revision={revision}");
    if let Some(key) = query.key {
        text.push_str(&format!(";key={key}"));
    }
    if let Some(role) = &query.role {
        text.push_str(&format!(";role={role}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use fairmesh_model::ShardKey;

    use super::*;

    fn keys(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn rls_keys_are_converted_to_pick_query() {
        for name in ["shop/cart", "cart.shop", "cart.shop:80"] {
            assert_eq!(
                pick_query(Identity::Anonymous, &keys(&[("service", name)])).unwrap().service.to_string(),
                "shop/cart"
            );
        }
        let all = pick_query(
            Identity::Anonymous,
            &keys(&[("service", "shop/cart"), ("key", "0x10"), ("role", "primary"), ("else", "")]),
        );
        let all = all.unwrap();
        assert_eq!((all.key, all.role.clone()), (Some(ShardKey(16)), Some(Role::new("primary").unwrap())));
        assert_eq!(header_data(&all, &all.service, 7), "service=shop/cart;revision=7;key=16;role=primary");
        let wrong: [&[(&str, &str)]; 4] = [
            &[],
            &[("service", "")],
            &[("service", "cart")],
            &[("service", "shop/cart"), ("key", "sixteen")],
        ];
        for wrong in wrong {
            assert!(pick_query(Identity::Anonymous, &keys(wrong)).is_err(), "{wrong:?}");
        }
    }
}
