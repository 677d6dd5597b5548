//! Loads of the gateway's replicas: their reports, what operators see of the loads, and the log of alerts.
//!
//! Everything is in memory: a control plane that starts has all replicas again after a second, or ten where there are 2,000. It does not know the
//! usual rates then, so that the cause of an alert in the first minute is undetermined.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_backend_loads::{
    Alert, BackendLoad, Cause, Crashed, EntryLoad, Limited, LoadBoard, MAX_SERVICES, ReplicaLoad, Report,
    ServiceCounts, ServiceDays, ServiceTrend,
};
use fairmesh_metrics::Register as _;
use fairmesh_model::{Invalid, Label, Record, RecordKey, ServiceName};
use fairmesh_rib::Node;
use fairmesh_wire::{record_encoding, v1};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tonic::Status;

/// Maximum number of replicas that a report calls unreachable: a backend has no more.
const MAX_UNREACHABLE: usize = 64;
/// Maximum number of a backend's services that are shown.
const MAX_SHOWN: usize = 128;

/// The loads that this control plane knows. Clones share the data.
#[derive(Clone, Debug)]
pub struct GatewayLoads {
    board: Arc<Mutex<LoadBoard>>,
    /// The loads of services over the last day, as of each look at the levels.
    days: Arc<Mutex<ServiceDays>>,
    /// When the collection began. Times count from here.
    began: Instant,
    /// Node with the records of backends.
    node: Node,
}

/// A snapshot of the state of all backends.
#[derive(Clone, Debug, Default)]
pub struct BackendLevels {
    /// The share of CPU in use by backend, in thousandths. Backends whose share is unknown are left out.
    pub used: BTreeMap<Label, u32>,
    /// Services whose growth overloads a backend, each with that backend.
    pub growing: BTreeSet<(ServiceName, Label)>,
    /// Backends that use too much of their CPU.
    pub alerted: BTreeSet<Label>,
    /// Services whose new connections overload a backend. For each, the limit of new connections per second at a replica:
    /// about twice the usual rate at the replica where the service is busiest.
    pub attacked: BTreeMap<ServiceName, u32>,
    /// Backends with a replica that has crashed lately, each with the services that had calls just before.
    pub crashed: Crashed,
    /// The replicas that report.
    pub reporting: BTreeSet<SocketAddr>,
    /// Interval of a replica's reports.
    pub interval: Duration,
}

impl GatewayLoads {
    /// Creates an empty collection. `node` has the records of backends.
    pub fn new(node: Node) -> Self {
        Self { board: Arc::default(), days: Arc::default(), began: Instant::now(), node }
    }

    fn now_ms(&self) -> u64 {
        millis(self.began.elapsed())
    }

    fn board(&self) -> MutexGuard<'_, LoadBoard> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes the report of a replica, and responds with the time of its next report.
    ///
    /// # Errors
    /// The report is malformed, or the record of the named backend does not list the replica.
    pub fn exchange(&self, request: v1::ReportGatewayRequest) -> Result<v1::ReportGatewayResponse, Status> {
        let report = report(request).map_err(|invalid| Status::invalid_argument(invalid.to_string()))?;
        if let Some(backend) = &report.backend
            && !self.is_declared(backend, report.address)
        {
            return Err(Status::failed_precondition(format!(
                "the record of the backend {backend} lists no replica at {}; see `fairmesh get gateway-backends`",
                report.address
            )));
        }
        let next = self.board().exchange(report, self.now_ms());
        let next_report_ms = u32::try_from(next.as_millis()).unwrap_or(u32::MAX);
        Ok(v1::ReportGatewayResponse { next_report_ms })
    }

    /// Whether a backend's record lists this replica. Reports of unlisted replicas could invent backends.
    fn is_declared(&self, backend: &Label, address: SocketAddr) -> bool {
        let key = RecordKey::GatewayBackend(backend.clone());
        let entry = self.node.get(&key.to_string());
        let record = entry.and_then(|entry| record_encoding::decode(&key, &entry.value).ok());
        matches!(record, Some(Record::GatewayBackend(declared)) if declared.replicas.contains(&address))
    }

    /// Updates alerts, and logs their changes. Done on reads rather than on each report, since it examines
    /// every replica.
    fn reviewed(&self) -> MutexGuard<'_, LoadBoard> {
        let mut board = self.board();
        let before = board.alerts().clone();
        board.review(self.now_ms());
        log_changes(&before, board.alerts());
        board
    }

    /// The loads of replicas and backends.
    pub fn read(&self) -> v1::ReadGatewayResponse {
        let (board, now_ms) = (self.reviewed(), self.now_ms());
        let backends = board.backends(now_ms).into_iter().map(|(name, load)| {
            let alert = board.alerts().get(&name);
            let limit = alert.and_then(|alert| attacked_service(&alert.cause));
            let limit = limit.map_or(0, |service| board.connection_limit(service, now_ms));
            backend_message(&name, &load, alert.map(|alert| alert_message((alert, limit), now_ms)))
        });
        v1::ReadGatewayResponse {
            replicas: board.replicas(now_ms).map(|load| replica_message(&load)).collect(),
            backends: backends.collect(),
        }
    }

    /// Sets the services whose placements limit their connections.
    pub fn set_limited(&self, limited: Limited) {
        self.board().set_limited(limited, self.now_ms());
    }

    /// The loads of services over a day; `None` until a day has been observed.
    pub fn day(&self) -> Option<BTreeMap<ServiceName, Vec<f64>>> {
        self.days.lock().unwrap_or_else(PoisonError::into_inner).whole()
    }

    /// Adds the present load of services to the load of their day.
    fn observe(&self, backends: &BTreeMap<Label, BackendLoad>, now_ms: u64) {
        let mut rates = BTreeMap::<&ServiceName, f64>::new();
        for (service, trend) in backends.values().flat_map(|load| &load.services) {
            *rates.entry(service).or_default() += trend.requests.recent;
        }
        let mut days = self.days.lock().unwrap_or_else(PoisonError::into_inner);
        days.observe(rates.into_iter(), now_ms);
    }

    /// The current state of backends.
    pub fn levels(&self) -> BackendLevels {
        let (board, now_ms) = (self.reviewed(), self.now_ms());
        let backends = board.backends(now_ms);
        self.observe(&backends, now_ms);
        let level = |load: &BackendLoad| u32::try_from(thousandths(load.utilisation()?)).ok();
        let used = backends.iter().filter_map(|(name, load)| Some((name.clone(), level(load)?)));
        let growing = board.alerts().iter().filter_map(|(backend, alert)| match &alert.cause {
            Cause::Growth(service) => Some((service.clone(), backend.clone())),
            _ => None,
        });
        let attacked = board.alerts().values().filter_map(|alert| {
            let service = attacked_service(&alert.cause)?;
            Some((service.clone(), board.connection_limit(service, now_ms)))
        });
        BackendLevels {
            used: used.collect(),
            growing: growing.collect(),
            alerted: board.alerts().keys().cloned().collect(),
            attacked: attacked.collect(),
            crashed: board.crashed(),
            reporting: board.replicas(now_ms).map(|one| one.address).collect(),
            interval: board.interval(),
        }
    }

    /// Registers the metrics. Their label values are names of declared backends.
    pub fn register(&self, control: &mut Registry) {
        let (board, now_ms) = (self.reviewed(), self.now_ms());
        let backends = board.backends(now_ms);
        let levels = backends
            .iter()
            .filter_map(|(name, load)| Some(([("backend", name.to_string().into())], load.utilisation()?)));
        let help = "CPU in use by the replicas of each backend of the gateway, as a share of their limits";
        control.gauges("gateway_backend_utilisation_ratio", help, levels);
        let alerts = board.alerts().iter().map(|(name, alert)| {
            let labels = [("backend", name.to_string().into()), ("cause", alert.cause.as_str().into())];
            (labels, 1_u64)
        });
        let help = "1 for each backend of the gateway that uses too much CPU, with the cause";
        control.gauges("gateway_backend_alert", help, alerts);
        let help = "Reports of replicas of the gateway left out, since there were too many replicas";
        control.counter("gateway_reports_left_out", help, board.left_out());
    }
}

/// The service whose connections have grown, where a virtual address names it.
fn attacked_service(cause: &Cause) -> Option<&ServiceName> {
    match cause {
        Cause::Connections(service) => service.as_ref(),
        _ => None,
    }
}

fn log_changes(before: &BTreeMap<Label, Alert>, now: &BTreeMap<Label, Alert>) {
    for (backend, alert) in now {
        if before.get(backend).is_none_or(|before| before.cause != alert.cause) {
            tracing::warn!(%backend, cause = %alert.cause, "a backend of the gateway uses too much of its CPU");
        }
    }
    for backend in before.keys().filter(|backend| !now.contains_key(*backend)) {
        tracing::info!(%backend, "a backend of the gateway is within its CPU limits again");
    }
}

fn report(request: v1::ReportGatewayRequest) -> Result<Report, Invalid> {
    let hint = "write an IP address and a port";
    let address: SocketAddr = request
        .address
        .parse()
        .map_err(|_| Invalid::new("address", format!("'{}' is no address", request.address), hint))?;
    let backend = Some(request.backend).filter(|backend| !backend.is_empty());
    let mut services = BTreeMap::new();
    for counts in request.services.into_iter().take(MAX_SERVICES) {
        let v1::GatewayServiceCounts { service, requests, errors, connections } = counts;
        services.insert(ServiceName::new(service)?, ServiceCounts { requests, errors, connections });
    }
    Ok(Report {
        address,
        backend: backend.map(Label::new).transpose()?,
        span: Duration::from_millis(request.span_ms.into()),
        cpu: Duration::from_micros(request.cpu_us),
        limit_millicores: Some(request.limit_millicores).filter(|limit| *limit > 0),
        memory: request.memory_bytes,
        open: request.open,
        accepted: request.accepted,
        all: ServiceCounts {
            requests: request.requests,
            errors: request.errors,
            connections: request.accepted,
        },
        services,
        is_leaving: request.leaving,
        is_first: request.first,
        entry: request.entry.map(entry_load).transpose()?,
    })
}

fn entry_load(entry: v1::GatewayEntry) -> Result<EntryLoad, Invalid> {
    let hint = "write an IP address and a port";
    let parse = |text: &String| {
        text.parse().map_err(|_| Invalid::new("entry", format!("'{text}' is no address"), hint))
    };
    Ok(EntryLoad {
        address: parse(&entry.address)?,
        head_buckets: entry.head_buckets,
        buckets: entry.buckets,
        begun: entry.begun,
        passed_on: entry.passed_on,
        unclaimed: entry.unclaimed,
        unreachable: entry.unreachable.iter().take(MAX_UNREACHABLE).map(parse).collect::<Result<_, _>>()?,
    })
}

fn entry_message(load: &EntryLoad) -> v1::GatewayEntry {
    v1::GatewayEntry {
        address: load.address.to_string(),
        head_buckets: load.head_buckets,
        buckets: load.buckets,
        begun: load.begun,
        passed_on: load.passed_on,
        unclaimed: load.unclaimed,
        unreachable: load.unreachable.iter().map(ToString::to_string).collect(),
    }
}

fn replica_message(load: &ReplicaLoad) -> v1::GatewayReplicaLoad {
    v1::GatewayReplicaLoad {
        address: load.address.to_string(),
        backend: load.backend.as_ref().map(ToString::to_string).unwrap_or_default(),
        age_ms: millis(load.age),
        cpu_millicores: thousandths(load.cores),
        limit_millicores: load.limit.map_or(0, thousandths),
        memory_bytes: load.memory,
        open: load.open,
        requests: thousandths(load.requests),
        errors: thousandths(load.errors),
        entry: load.entry.as_ref().map(entry_message),
    }
}

fn backend_message(
    name: &Label,
    load: &BackendLoad,
    alert: Option<v1::GatewayAlert>,
) -> v1::GatewayBackendLoad {
    let mut services: Vec<_> = load.services.iter().collect();
    let weight = |trend: &ServiceTrend| trend.requests.recent + trend.connections.recent;
    services.sort_by(|(_, a), (_, b)| weight(b).total_cmp(&weight(a)));
    services.truncate(MAX_SHOWN);
    v1::GatewayBackendLoad {
        backend: name.to_string(),
        replicas: u32::try_from(load.replicas).unwrap_or(u32::MAX),
        cpu_millicores: thousandths(load.cores.recent),
        usual_cpu_millicores: thousandths(load.cores.usual),
        limit_millicores: thousandths(load.limit),
        requests: thousandths(load.all.requests.recent),
        connections: thousandths(load.accepted.recent),
        usual_connections: thousandths(load.accepted.usual),
        services: services.into_iter().map(|(name, trend)| service_message(name, trend)).collect(),
        alert,
    }
}

fn service_message(name: &ServiceName, trend: &ServiceTrend) -> v1::GatewayServiceLoad {
    v1::GatewayServiceLoad {
        service: name.to_string(),
        requests: thousandths(trend.requests.recent),
        usual_requests: thousandths(trend.requests.usual),
        errors: thousandths(trend.errors.recent),
        connections: thousandths(trend.connections.recent),
        usual_connections: thousandths(trend.connections.usual),
    }
}

fn alert_message((alert, proposed_limit): (&Alert, u32), now_ms: u64) -> v1::GatewayAlert {
    v1::GatewayAlert {
        age_ms: now_ms.saturating_sub(alert.since_ms),
        cause: alert.cause.as_str().to_owned(),
        service: alert.cause.service().map(ToString::to_string).unwrap_or_default(),
        reason: alert.cause.to_string(),
        proposed_limit,
    }
}

/// Converts a reported rate to thousandths. Rates are not negative; rates too large for the type become its
/// maximum.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn thousandths(value: f64) -> u64 {
    (value * 1_000.0).round() as u64
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use fairmesh_model::{GatewayBackend, StoreId, Zone};
    use fairmesh_rib::Entry;

    use super::*;

    /// Loads of backends in zone `a`, with one replica each, at 10.0.0.1 and ports from 1 on.
    pub(crate) fn loads_of(backends: &[&str]) -> GatewayLoads {
        let entry = |(port, name): (u16, &&str)| {
            let backend = GatewayBackend {
                zone: Zone::new("a").unwrap(),
                capacity: 10,
                replicas: [SocketAddr::from(([10, 0, 0, 1], port))].into(),
                is_closed: false,
                is_sandbox: false,
            };
            let key = RecordKey::GatewayBackend(Label::new(*name).unwrap());
            (key.to_string().into(), Entry { value: record_encoding::encode(&backend.into()), revision: 1 })
        };
        GatewayLoads::new(Node::load(StoreId(7), 1, (1..).zip(backends).map(entry)))
    }

    fn request(address: &str, service: &str) -> v1::ReportGatewayRequest {
        let counts = v1::GatewayServiceCounts { service: service.into(), requests: 10, ..Default::default() };
        v1::ReportGatewayRequest {
            address: address.into(),
            backend: "gw-1".into(),
            span_ms: 1_000,
            cpu_us: 900_000,
            limit_millicores: 1_000,
            services: vec![counts],
            requests: 10,
            ..Default::default()
        }
    }

    #[test]
    fn overloaded_backend_is_shown_with_services_and_alert() {
        let loads = loads_of(&["gw-1"]);
        loads.exchange(request("10.0.0.1:1", "red/web")).unwrap();
        let read = loads.read();
        assert_eq!((read.replicas[0].cpu_millicores, read.replicas[0].requests), (900, 10_000));
        let backend = &read.backends[0];
        assert_eq!((&*backend.backend, &*backend.services[0].service), ("gw-1", "red/web"));
        assert_eq!(backend.alert.as_ref().unwrap().cause, "undetermined", "nothing usual is known");
        let leaving = v1::ReportGatewayRequest { leaving: true, ..request("10.0.0.1:1", "red/web") };
        loads.exchange(leaving).unwrap();
        assert_eq!(loads.read().replicas, []);
    }

    #[test]
    fn shared_address_of_replica_is_shown_with_packets_per_second() {
        let loads = loads_of(&["gw-1"]);
        let entry = v1::GatewayEntry {
            address: "10.99.0.1:7440".into(),
            head_buckets: 1_024,
            buckets: 4_096,
            begun: 3,
            passed_on: 500,
            unclaimed: 1,
            unreachable: vec!["10.0.0.2:1".into()],
        };
        let with = |entry, span_ms| v1::ReportGatewayRequest {
            entry: Some(entry),
            span_ms,
            ..request("10.0.0.1:1", "red/web")
        };
        loads.exchange(with(entry.clone(), 2_000)).unwrap();
        let shown = v1::GatewayEntry { begun: 1_500, passed_on: 250_000, unclaimed: 500, ..entry.clone() };
        assert_eq!(loads.read().replicas[0].entry, Some(shown));
        for entry in [
            v1::GatewayEntry { address: "10.99.0.1".into(), ..entry.clone() },
            v1::GatewayEntry { unreachable: vec!["gw-2".into()], ..entry },
        ] {
            let refused = loads.exchange(with(entry, 1_000)).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        }
        loads.exchange(request("10.0.0.1:1", "red/web")).unwrap();
        assert_eq!(loads.read().replicas[0].entry, None, "it runs without --entry now");
    }

    #[test]
    fn gateway_reports_with_invalid_address_or_service_are_refused() {
        let loads = loads_of(&["gw-1"]);
        for (address, service) in [("gw.example:7440", "red/web"), ("", "red/web"), ("10.0.0.1:1", "web")] {
            let refused = loads.exchange(request(address, service)).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        }
        assert_eq!(loads.read().replicas, []);
    }

    #[test]
    fn report_of_replica_not_listed_by_its_backend_is_refused() {
        let loads = loads_of(&["gw-1"]);
        let unlisted = [
            request("10.0.0.1:2", "red/web"),
            v1::ReportGatewayRequest { backend: "gw-2".into(), ..request("10.0.0.1:1", "red/web") },
        ];
        for request in unlisted {
            let refused = loads.exchange(request).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
        }
        assert_eq!(loads.read().replicas, []);
    }
}
