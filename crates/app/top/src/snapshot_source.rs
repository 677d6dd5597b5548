//! Snapshots from the control plane.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_console::{
    connect,
    failure::Failure,
    view_reader::{ReadView, Scope, View, every_kind},
};
use fairmesh_model::ServiceName;
use fairmesh_wire::{
    handshake::{self, Connection},
    v1,
};

use crate::{TopArgs, snapshot::Snapshot};

/// Interval between readings of the cores wasted by imbalance, which have a resolution of one minute.
const WASTE_INTERVAL: Duration = Duration::from_secs(30);

/// A connection, and the parameters of its requests.
pub(crate) struct Source {
    connection: Connection,
    request: v1::ReadCallsRequest,
    wasted: BTreeMap<String, f64>,
    wasted_at: Option<tokio::time::Instant>,
}

impl Source {
    pub(crate) async fn connect(args: &TopArgs) -> Result<Self, Failure> {
        let request = v1::ReadCallsRequest {
            service: args.service.as_ref().map(ToString::to_string).unwrap_or_default(),
            tenant: args.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
            window_s: u32::try_from(args.window.as_secs()).unwrap_or(u32::MAX),
            series: false,
        };
        let connection = connect::connect(&args.target).await?;
        Ok(Self { connection, request, wasted: BTreeMap::new(), wasted_at: None })
    }

    /// Reads the current calls. After a lost connection, connects again.
    pub(crate) async fn read(&mut self) -> Result<Snapshot, Failure> {
        let response = match self.calls().await {
            Err(lost) if lost.is_connection_lost() => {
                self.connect_again().await?;
                self.calls().await?
            }
            response => response?,
        };
        self.read_waste().await;
        Ok(Snapshot { wasted: self.wasted.clone(), ..Snapshot::of(response) })
    }

    /// Reads the current calls, and the endpoints of a service.
    pub(crate) async fn read_with_endpoints(&mut self, service: Option<&str>) -> Result<Snapshot, Failure> {
        let mut snapshot = self.read().await?;
        if let Some(name) = service.and_then(|service| ServiceName::new(service).ok()) {
            let view =
                View::read_complete(&self.connection, &Scope::Service(name.clone()), &every_kind()).await?;
            snapshot.endpoints = view.services.get(&name).map(endpoints).unwrap_or_default();
        }
        Ok(snapshot)
    }

    async fn calls(&self) -> Result<v1::ReadCallsResponse, Failure> {
        Ok(self.connection.admin().read_calls(self.request.clone()).await?.into_inner())
    }

    async fn connect_again(&mut self) -> Result<(), Failure> {
        let (transport, address) = (self.connection.transport(), self.connection.address());
        let again = handshake::connect(transport, address, connect::SOFTWARE).await;
        self.connection = again.map_err(|error| connect::unreachable(address, &error))?;
        Ok(())
    }

    /// Reads the wasted cores from time to time. Empty for a user who may not read them.
    async fn read_waste(&mut self) {
        if self.wasted_at.is_some_and(|at| at.elapsed() < WASTE_INTERVAL) {
            return;
        }
        self.wasted_at = Some(tokio::time::Instant::now());
        let request =
            v1::ReadImbalanceRequest { service: self.request.service.clone(), ..Default::default() };
        let Ok(response) = self.connection.imbalance().read(request).await else { return };
        let response = response.into_inner();
        let cores = |line: v1::ImbalanceLine| {
            let minutes = if line.minutes == 0 { response.minutes } else { line.minutes };
            let area = line.area.unwrap_or_default();
            let wasted = area.peak_millicore_minutes as f64 - area.used_millicore_minutes as f64;
            (line.name, wasted / 1_000.0 / minutes.max(1) as f64)
        };
        self.wasted = response.lines.into_iter().map(cores).collect();
    }
}

fn endpoints(service: &fairmesh_console::view_reader::ServiceView) -> Vec<[String; 3]> {
    let row = |endpoint: &fairmesh_model::Endpoint| {
        let state = endpoint.state.as_str().to_owned();
        [endpoint.instance.to_string(), endpoint.location.region.to_string(), state]
    };
    service.endpoints.iter().map(|one| row(&one.value)).collect()
}
