//! Summarises a simulation.

use fairmesh_rib::Table;

use super::{Disconnections, Engine, ROOT, SECOND};
use crate::replica_tree::{
    meter::{Flow, Sample},
    process::{Process, ProcessId},
    report::{Layer, Propagation, Recovery, Report, Traffic, Written},
    scenario::{Action, ScenarioEvent},
};

const MEGA: f64 = 1e6;

pub(super) fn report(engine: Engine<'_>) -> Report {
    let scenario = engine.scenario;
    let layers: Vec<Layer> = (0..engine.layers.len()).map(|layer| engine.layer(layer)).collect();
    let recoveries = scenario
        .events
        .iter()
        .zip(&engine.disconnections)
        .map(|(event, disconnections)| recovery(event, disconnections));
    let mut report = Report {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        seconds: scenario.duration.as_seconds(),
        routers: scenario.routers(),
        routers_simulated: layers.last().map_or(0, |layer| layer.simulated),
        services: engine.catalogue.services.len() as u64,
        servers: engine.catalogue.servers(),
        records: engine.table(ROOT).map_or(0, |table| table.len() as u64),
        megabytes: engine.megabytes(),
        writes: Written {
            batches: engine.workload.batches,
            records: engine.workload.records,
            megabytes_per_second: engine.workload.bytes() as f64 / MEGA / scenario.duration.as_seconds(),
            refused: engine.refused,
        },
        layers,
        acknowledged: Propagation::of(&engine.ack_latency),
        recoveries: recoveries.collect(),
        different: scenario.compare.then(|| engine.differing_records()),
        missed: Vec::new(),
    };
    report.missed = scenario.expect.missed(&report);
    report
}

impl Engine<'_> {
    fn layer(&self, layer: usize) -> Layer {
        let simulated: Vec<&Process> =
            self.processes.iter().filter(|process| process.layer == layer).collect();
        let meter = &self.layers[layer];
        let processes: u64 = simulated.iter().map(|process| process.represents).sum();
        let seconds = (self.scenario.duration.nanos() - self.scenario.warmup.nanos()) as f64 / SECOND as f64;
        let all = |value: fn(&Flow) -> u64| -> f64 {
            let sum: u64 =
                simulated.iter().map(|process| value(&process.meter.all) * process.represents).sum();
            sum as f64 / seconds
        };
        let mean = |value: fn(&Flow) -> u64| all(value) / processes.max(1) as f64;
        let peak = |value: fn(&Flow) -> u64| {
            simulated.iter().map(|process| value(&process.meter.peak)).max().unwrap_or(0) as f64
        };
        let traffic = |value| Traffic { mean: mean(value) / MEGA, peak: peak(value) / MEGA };
        let (table, watchers) = self.memory(&simulated);
        Layer {
            name: self.name(layer),
            replica: (1..=self.scenario.replicas.len()).contains(&layer),
            processes,
            simulated: simulated.len() as u64,
            received: traffic(|flow| flow.received),
            sent: traffic(|flow| flow.sent),
            all_sent: all(|flow| flow.sent) / MEGA,
            messages: mean(|flow| flow.messages),
            busy: mean(|flow| flow.busy) / SECOND as f64,
            busiest: peak(|flow| flow.busy) / SECOND as f64,
            table_megabytes: table,
            watchers_megabytes: watchers,
            snapshots: meter.snapshots,
            snapshot_megabytes: meter.snapshot_bytes as f64 / MEGA,
            bytes_sent: meter.sent,
            bytes_received: meter.received,
            bytes_lost: meter.lost,
            propagation: Propagation::of(&meter.before_event),
            propagation_later: Propagation::of(&meter.after_event),
            timeline: meter.timeline.iter().map(point).collect(),
        }
    }

    fn name(&self, layer: usize) -> String {
        let replicas = &self.scenario.replicas;
        match layer.checked_sub(1) {
            None => "root".into(),
            Some(at) if at < replicas.len() => replicas[at].name.clone(),
            Some(at) if at == replicas.len() => "agents".into(),
            Some(_) => "programs".into(),
        }
    }

    /// Megabytes of the largest table, and of the watchers of the process with the most, including watchers represented
    /// by simulated ones.
    fn memory(&self, processes: &[&Process]) -> (f64, f64) {
        let mut largest = (0.0_f64, 0.0_f64);
        for process in processes {
            let Some(node) = &process.node else { continue };
            let (table, watchers) = node.memory_bytes();
            let simulated = process.children.len().max(1) as f64;
            let all: u64 = process.children.values().map(|child| self.processes[*child].multiplicity).sum();
            largest.0 = largest.0.max(table as f64 / MEGA);
            largest.1 = largest.1.max(watchers as f64 / MEGA * all as f64 / simulated);
        }
        largest
    }

    fn megabytes(&self) -> f64 {
        let maps = self.catalogue.chunks() as f64 * f64::from(self.scenario.services.chunk_bytes);
        let endpoints = self.catalogue.servers() as f64 * f64::from(self.scenario.services.endpoint_bytes);
        (maps + endpoints) / MEGA
    }

    fn table(&self, id: ProcessId) -> Option<&Table> {
        self.processes[id].node.as_ref().map(|node| node.table())
    }

    /// Number of records in simulated processes that differ from the root's.
    fn differing_records(&self) -> u64 {
        let Some(root) = self.table(ROOT) else { return 0 };
        let differs = |id: ProcessId| {
            let Some(table) = self.table(id) else { return 0 };
            let everything = root.len() == table.len() && self.processes[id].prefixes.len() == 1;
            let wanted = if everything { table.len() } else { root.read(&self.processes[id].prefixes).len() };
            let (mut same, mut other) = (0, 0);
            for (key, entry) in table.all() {
                if root.get(key) == Some(entry) { same += 1 } else { other += 1 }
            }
            other + wanted.saturating_sub(same)
        };
        (1..self.processes.len()).map(|id| differs(id) as u64).sum()
    }
}

fn point(sample: &Sample) -> (f64, f64) {
    (sample.bytes as f64 / MEGA, sample.worst as f64 / 1e3)
}

fn recovery(event: &ScenarioEvent, disconnections: &Disconnections) -> Recovery {
    let all_back = disconnections.back.filter(|_| disconnections.missing == 0);
    Recovery {
        event: describe(&event.action),
        lost: disconnections.processes,
        seconds: all_back.map(|back| back.saturating_sub(disconnections.ended) as f64 / SECOND as f64),
        snapshots: disconnections.snapshots,
        snapshot_megabytes: disconnections.snapshot_bytes as f64 / MEGA,
    }
}

fn describe(action: &Action) -> String {
    match action {
        Action::RestartRoot { duration } => format!("root down for {duration}"),
        Action::RestartReplicas { layer, region: None, duration } => format!("{layer} down for {duration}"),
        Action::RestartReplicas { layer, region: Some(region), duration } => {
            format!("{layer} of {region} down for {duration}")
        }
        Action::Cut { region, duration } => format!("{region} disconnected for {duration}"),
        Action::Burst { records, over } => format!("{records} records in {over}"),
    }
}
