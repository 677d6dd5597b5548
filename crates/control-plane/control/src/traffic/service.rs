use std::{sync::Arc, time::Duration};

use fairmesh_model::{Invalid, Region, ServiceName};
use fairmesh_rib::Node;
use fairmesh_store::Store;
use fairmesh_wire::v1::{self, traffic_planner_server::TrafficPlanner};
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};

use super::{TrafficPlanning, drain_requests::DrainRequest, what_if::scenario};

/// The gRPC service `TrafficPlanner`.
#[derive(Clone, Debug)]
pub(crate) struct TrafficService {
    pub(crate) planning: TrafficPlanning,
    pub(crate) node: Node,
    pub(crate) store: Arc<dyn Store>,
}

#[tonic::async_trait]
impl TrafficPlanner for TrafficService {
    async fn status(
        &self,
        request: Request<v1::TrafficStatusRequest>,
    ) -> Result<Response<v1::TrafficStatusResponse>, Status> {
        let wanted = named("service", &request.into_inner().service)?;
        let services = self.planning.facts.planned();
        let services =
            services.iter().filter(|service| wanted.as_ref().is_none_or(|wanted| wanted == *service));
        let services = services.filter_map(|service| self.planning.status(service)).collect();
        let left_out = self.planning.reports.left_out();
        let mut without_trace_context = self.planning.without_trace_context();
        // Callers that name a service may see no other.
        without_trace_context
            .retain(|missing| wanted.as_ref().is_none_or(|wanted| missing.service == wanted.to_string()));
        Ok(Response::new(v1::TrafficStatusResponse { services, left_out, without_trace_context }))
    }

    async fn forecast_drain(
        &self,
        request: Request<v1::ForecastDrainRequest>,
    ) -> Result<Response<v1::ForecastDrainResponse>, Status> {
        let region = region(request.into_inner().region)?;
        self.planning.check_region(&region).map_err(|e| Status::failed_precondition(e.to_string()))?;
        Ok(Response::new(self.planning.forecast(&region, &self.node)))
    }

    async fn drain_region(
        &self,
        request: Request<v1::DrainRegionRequest>,
    ) -> Result<Response<v1::DrainRegionResponse>, Status> {
        let v1::DrainRegionRequest { region: name, undrain, over_ms } = request.into_inner();
        let request =
            DrainRequest { region: region(name)?, returns: undrain, over: Duration::from_millis(over_ms) };
        let begun = self.planning.begin_drain(&*self.store, &request).await;
        begun.map_err(|e| Status::failed_precondition(e.to_string()))?;
        Ok(Response::new(v1::DrainRegionResponse {}))
    }

    async fn drains(&self, _: Request<v1::DrainsRequest>) -> Result<Response<v1::DrainsResponse>, Status> {
        Ok(Response::new(v1::DrainsResponse { drains: self.planning.drains() }))
    }

    async fn calls(
        &self,
        request: Request<v1::TrafficCallsRequest>,
    ) -> Result<Response<v1::TrafficCallsResponse>, Status> {
        let v1::TrafficCallsRequest { service, caller } = request.into_inner();
        let (service, caller) = (named("service", &service)?, named("caller", &caller)?);
        Ok(Response::new(self.planning.reports.calls(service.as_ref(), caller.as_ref())?))
    }

    async fn graph(
        &self,
        request: Request<v1::TrafficGraphRequest>,
    ) -> Result<Response<v1::TrafficGraphResponse>, Status> {
        let service = named("service", &request.into_inner().service)?;
        Ok(Response::new(self.planning.reports.call_graph(service.as_ref())?))
    }

    async fn what_if(
        &self,
        request: Request<v1::WhatIfRequest>,
    ) -> Result<Response<v1::WhatIfResponse>, Status> {
        let (request, node) = (request.into_inner(), self.node.clone());
        // Checking many policies compiles their expressions.
        let read = spawn_blocking(move || scenario(request, &node)).await;
        let scenario = read.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(self.planning.what_if(scenario).await?))
    }
}

/// A service that may be named.
fn named(field: &str, name: &str) -> Result<Option<ServiceName>, Status> {
    let invalid = |e: Invalid| Status::invalid_argument(e.within(field).to_string());
    (!name.is_empty()).then(|| ServiceName::new(name)).transpose().map_err(invalid)
}

fn region(name: String) -> Result<Region, Status> {
    Region::try_from(name).map_err(|e| Status::invalid_argument(e.within("region").to_string()))
}
