//! gRPC's Route Lookup Service: for gRPC clients that have a policy of their own for asking.
//!
//! The client's configuration says from which headers it builds the keys `service`, `key` and `role`. Nobody reports what
//! came of such a pick, so its leases just run out.

use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{Invalid, Role, ServiceName};
use fairmesh_wire::grpc_lookup::{
    RouteLookupRequest, RouteLookupResponse, route_lookup_service_server::RouteLookupService,
};
use tonic::{Request, Response, Status};

use crate::{
    metrics::add,
    picker::{Picker, Wanted},
    service::refused,
};

/// How many targets a client gets: one, and two to turn to.
const TARGETS: usize = 3;

/// Answers gRPC clients.
#[derive(Clone, Debug)]
pub(crate) struct Lookups(pub(crate) Arc<Picker>);

#[tonic::async_trait]
impl RouteLookupService for Lookups {
    async fn route_lookup(
        &self,
        request: Request<RouteLookupRequest>,
    ) -> Result<Response<RouteLookupResponse>, Status> {
        let request = request.into_inner();
        if !matches!(request.target_type.as_str(), "" | "grpc") {
            let message =
                format!("targets of type '{}' are not known here; ask for grpc", request.target_type);
            return Err(Status::invalid_argument(message));
        }
        let wanted = wanted(&request.key_map).map_err(|problem| refused(&problem))?;
        let given = self.0.pick(&wanted).await.map_err(|fault| Status::from_error(Box::new(fault)))?;
        add(&self.0.metrics.lookups, 1);
        Ok(Response::new(RouteLookupResponse {
            targets: given.leases.iter().map(|(_, target)| target.address.to_string()).collect(),
            header_data: header_data(&wanted, &given.service, given.revision),
        }))
    }
}

fn wanted(keys: &BTreeMap<String, String>) -> Result<Wanted, Invalid> {
    let of = |name: &str| keys.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let missing =
        || Invalid::new("key_map", "it has no 'service'", "send tenant/service, or service.tenant as a host");
    Ok(Wanted {
        service: service(of("service").ok_or_else(missing)?).map_err(|problem| problem.within("service"))?,
        key: of("key").map(str::parse).transpose().map_err(|problem: Invalid| problem.within("key"))?,
        role: of("role").map(Role::new).transpose().map_err(|problem| problem.within("role"))?,
        endpoints: TARGETS,
        avoid: Vec::new(),
    })
}

/// Reads `tenant/service`, or as hosts have it `service.tenant`, with or without a port.
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

/// What the server is told of the pick: the key and the role that it was made by, and by which records.
fn header_data(wanted: &Wanted, service: &ServiceName, revision: u64) -> String {
    let mut text = format!("service={service};revision={revision}");
    if let Some(key) = wanted.key {
        text.push_str(&format!(";key={key}"));
    }
    if let Some(role) = &wanted.role {
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
    fn the_keys_of_a_lookup_say_what_is_wanted() {
        for name in ["shop/cart", "cart.shop", "cart.shop:80"] {
            assert_eq!(wanted(&keys(&[("service", name)])).unwrap().service.to_string(), "shop/cart");
        }
        let all =
            wanted(&keys(&[("service", "shop/cart"), ("key", "0x10"), ("role", "primary"), ("else", "")]));
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
            assert!(wanted(&keys(wrong)).is_err(), "{wrong:?}");
        }
    }
}
