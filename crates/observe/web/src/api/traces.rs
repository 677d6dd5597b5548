//! Pages about traces: the list, and one trace.

use axum::{
    extract::{Path, Query, State},
    http::Extensions,
    response::Response,
};
use fairmesh_model::{Invalid, ServiceName};
use fairmesh_wire::v1;
use serde::Deserialize;
use tokio::runtime::Handle;

use super::{RECORDS_EVERY, Served, invalid, stream};
use crate::panels::traces;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AskedTraces {
    /// Show only spans of this tenant; if empty, of all tenants.
    tenant: String,
    /// Show only traces in which this service takes part; if empty, of all services.
    service: String,
    /// Show only traces with a failed span.
    failed: bool,
}

/// Streams the slowest and the failed traces.
pub(super) async fn list(
    State(served): State<Served>,
    Query(asked): Query<AskedTraces>,
    asker: Extensions,
) -> Response {
    let request = match asked.request() {
        Ok(request) => request,
        Err(error) => return invalid(error),
    };
    let key = format!("{asked:?}");
    let part =
        served.part("traces", (RECORDS_EVERY, key), move |served| traces::traces(read(served, &request)));
    stream(&served, asker, vec![part])
}

/// Streams a trace, whose spans may still arrive.
pub(super) async fn one(
    State(served): State<Served>,
    Path(id): Path<String>,
    Query(AskedTraces { tenant, .. }): Query<AskedTraces>,
    asker: Extensions,
) -> Response {
    let key = format!("{id} {tenant}");
    let request = v1::ReadTracesRequest { id, tenant, ..Default::default() };
    let part =
        served.part("trace", (RECORDS_EVERY, key), move |served| traces::trace(read(served, &request)));
    stream(&served, asker, vec![part])
}

fn read(served: &Served, request: &v1::ReadTracesRequest) -> Result<v1::ReadTracesResponse, tonic::Status> {
    let reading = async { Ok(served.commands.admin().read_traces(request.clone()).await?.into_inner()) };
    Handle::current().block_on(reading)
}

impl AskedTraces {
    /// The request of the command. Access was checked for the tenant: a service of another one is refused.
    fn request(&self) -> Result<v1::ReadTracesRequest, Invalid> {
        let Self { tenant, service, failed } = self.clone();
        if !service.is_empty() {
            let name = ServiceName::new(&service).map_err(|error| error.within("service"))?;
            if !tenant.is_empty() && name.tenant.as_str() != tenant {
                let hint = "name a service of this tenant, or another tenant";
                return Err(Invalid::new("service", format!("is not of the tenant {tenant}"), hint));
            }
        }
        Ok(v1::ReadTracesRequest { tenant, service, failed, ..Default::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_of_service_of_another_tenant_are_refused() {
        let asked = |tenant: &str, service: &str| {
            AskedTraces { tenant: tenant.into(), service: service.into(), failed: true }.request()
        };
        assert!(asked("shop", "bank/vault").unwrap_err().to_string().contains("tenant shop"));
        assert!(asked("", "vault").is_err());
        let request = asked("shop", "shop/cart").unwrap();
        assert_eq!((&*request.tenant, &*request.service, request.failed), ("shop", "shop/cart", true));
        assert!(asked("", "bank/vault").is_ok(), "access to all tenants was checked");
    }
}
