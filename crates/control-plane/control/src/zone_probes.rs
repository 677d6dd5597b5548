//! Probes between agents: receives their reports, plans the next round, and shows operators the state of the
//! network between zones.
//!
//! All of this is in memory: after a restart, a control plane has results for all pairs again after a few
//! rounds, and shows none before.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_controllers::MonotonicClock;
use fairmesh_metrics::Register as _;
use fairmesh_model::{Invalid, Region, Zone, check_reachable};
use fairmesh_probes::{Board, Cell, Outcomes, Place, Protocol, Report, Verdict};
use fairmesh_wire::v1;
use prometheus_client::registry::Registry;
use tonic::Status;

/// Maximum number of results in one report.
const MAX_RESULTS: usize = 64;
/// Names of verdicts. Each has a metric series.
const VERDICTS: [&str; 4] = ["passing", "degraded", "failing", "stale"];

/// The results of all agents' probes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ZoneProbes {
    board: Arc<Mutex<Board>>,
    clock: MonotonicClock,
}

impl ZoneProbes {
    /// Creates a board without agents.
    pub(crate) fn new(seed: u64) -> Self {
        Self { board: Arc::new(Mutex::new(Board::new(seed))), clock: MonotonicClock::start() }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the report of an agent, and returns the targets that the agent must probe next.
    pub(crate) fn exchange(
        &self,
        request: v1::ReportProbesRequest,
    ) -> Result<v1::ReportProbesResponse, Status> {
        let report = report(request).map_err(|invalid| Status::invalid_argument(invalid.to_string()))?;
        let assignment = self.board().exchange(report, self.clock.now_ms());
        Ok(v1::ReportProbesResponse {
            targets: assignment.targets.iter().map(ToString::to_string).collect(),
            interval_ms: u32::try_from(assignment.interval.as_millis()).unwrap_or(u32::MAX),
        })
    }

    /// Returns the results of all pairs of zones, with their ages.
    pub(crate) fn read(&self) -> v1::ReadProbesResponse {
        let board = self.board();
        let pairs = board.cells(self.clock.now_ms()).map(message).collect();
        v1::ReadProbesResponse { pairs, agents: u32::try_from(board.counts().agents).unwrap_or(u32::MAX) }
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, control: &mut Registry) {
        let board = self.board();
        let cells: Vec<_> = board.cells(self.clock.now_ms()).collect();
        let count = |name| cells.iter().filter(|cell| cell.verdict.as_str() == name).count();
        let rows = VERDICTS.map(|name| ([("verdict", name.into())], count(name)));
        control.gauges(
            "zone_probe_pairs",
            "Ordered pairs of zones whose agents probe each other, by verdict",
            rows,
        );
        let rows = cells.iter().filter_map(|cell| {
            let (Verdict::Failing(protocol), from, to) = (cell.verdict, &cell.from, &cell.to) else {
                return None;
            };
            let labels = [
                ("from", from.to_string().into()),
                ("to", to.to_string().into()),
                ("protocol", protocol.as_str().into()),
            ];
            Some((labels, 1_u64))
        });
        let help = "1 for each ordered pair of zones between which every probe fails, with the first protocol that fails";
        control.gauges("zone_probe_failing", help, rows);
        let counts = board.counts();
        control.gauge("zone_probe_agents", "Agents that answer probes", counts.agents);
        let help = "Reports of probes left out, since there were too many agents";
        control.counter("zone_probe_reports_left_out", help, counts.left_out);
    }
}

fn report(request: v1::ReportProbesRequest) -> Result<Report, Invalid> {
    let v1::ReportProbesRequest { region, zone, address, results, leaving } = request;
    let zone = Some(zone).filter(|zone| !zone.is_empty()).map(Zone::new).transpose()?;
    let place = Place { region: Region::new(region)?, zone };
    let hint = "write an IP address and a port";
    let address: SocketAddr =
        address.parse().map_err(|_| Invalid::new("address", format!("'{address}' is no address"), hint))?;
    check_reachable("address", address)?;
    // Targets that are no valid address do not belong to any agent, and are skipped.
    let results = results.into_iter().take(MAX_RESULTS);
    let results = results.filter_map(|result| Some((result.target.parse().ok()?, outcomes(&result))));
    Ok(Report { address, place, results: results.collect(), is_leaving: leaving })
}

/// Returns the outcomes for the protocols that this release knows.
fn outcomes(result: &v1::ProbeResult) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for one in result.outcomes.iter().take(MAX_RESULTS) {
        let Some(protocol) = Protocol::ALL.into_iter().find(|known| known.as_str() == one.protocol) else {
            continue;
        };
        match one.failed {
            true => outcomes.fail(protocol),
            false => outcomes.pass(protocol, Duration::from_micros(one.took_us)),
        }
    }
    outcomes
}

fn message(cell: Cell) -> v1::ProbedPair {
    let Cell { from, to, verdict, age, protocols } = cell;
    let zone = |place: &Place| place.zone.as_ref().map(ToString::to_string).unwrap_or_default();
    let number = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let protocols = Protocol::ALL.iter().zip(protocols).map(|(protocol, view)| v1::ProbedProtocol {
        protocol: protocol.as_str().to_owned(),
        passed: view.passed,
        failed: view.failed,
        took_us: view.took.map(number),
    });
    v1::ProbedPair {
        from_region: from.region.to_string(),
        from_zone: zone(&from),
        to_region: to.region.to_string(),
        to_zone: zone(&to),
        verdict: verdict.as_str().to_owned(),
        fault: verdict.fault().map(|protocol| protocol.as_str().to_owned()).unwrap_or_default(),
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        protocols: protocols.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: &str, results: Vec<v1::ProbeResult>) -> v1::ReportProbesRequest {
        let (region, address) = ("eu".to_owned(), address.to_owned());
        v1::ReportProbesRequest { region, zone: "a".into(), address, results, leaving: false }
    }

    #[test]
    fn zone_probe_report_with_unusable_agent_address_is_refused() {
        let probes = ZoneProbes::new(0);
        for address in ["169.254.169.254:80", "0.0.0.0:7405", "10.0.0.1:0", "agent.example:7405"] {
            let refused = probes.exchange(request(address, Vec::new())).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{address}: {refused}");
        }
        assert_eq!(probes.read().agents, 0);
    }

    #[test]
    fn zone_probe_report_with_unknown_protocol_or_target_is_ignored_there() {
        let outcome =
            |protocol: &str| v1::ProtocolOutcome { protocol: protocol.into(), failed: true, took_us: 0 };
        let result = |target: &str, protocol: &str| v1::ProbeResult {
            target: target.into(),
            outcomes: vec![outcome(protocol)],
        };
        let probes = ZoneProbes::new(0);
        let began_ms = probes.clock.now_ms();
        let exchange = |address: &str, results: Vec<v1::ProbeResult>, after_ms: u64| {
            let report = report(request(address, results)).unwrap();
            probes.board().exchange(report, began_ms + after_ms).targets
        };
        exchange("10.0.0.2:7405", Vec::new(), 0);
        exchange("10.0.0.1:7405", Vec::new(), 0);
        let targets = exchange("10.0.0.1:7405", Vec::new(), 3_000);
        assert_eq!(targets, ["10.0.0.2:7405".parse().unwrap()]);
        let results =
            vec![result("10.0.0.2:7405", "quic"), result("nowhere", "tcp"), result("10.0.0.9:1", "tcp")];
        exchange("10.0.0.1:7405", results, 3_000);
        assert_eq!(probes.read().pairs, []);
        exchange("10.0.0.1:7405", vec![result("10.0.0.2:7405", "tcp")], 3_000);
        let pair = &probes.read().pairs[0];
        assert_eq!((&*pair.verdict, &*pair.fault, &*pair.from_zone), ("failing", "tcp", "a"));
        assert_eq!((pair.protocols[0].failed, pair.protocols[0].took_us), (1, None));
    }
}
