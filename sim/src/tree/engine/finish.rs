//! Draws the figures together.

use fairmesh_rib::Table;

use super::{Engine, Lost, ROOT, SECOND};
use crate::tree::{
    meter::{Flow, Sample},
    place::{Id, Place},
    report::{Layer, Propagation, Recovery, Report, Traffic, Written},
    scenario::{Action, Happening},
};

const MEGA: f64 = 1e6;

pub(super) fn report(engine: Engine<'_>) -> Report {
    let scenario = engine.scenario;
    let layers: Vec<Layer> = (0..engine.layers.len()).map(|layer| engine.layer(layer)).collect();
    let recoveries = scenario.events.iter().zip(&engine.lost).map(|(event, lost)| recovery(event, lost));
    let mut report = Report {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        seconds: scenario.duration.as_seconds(),
        routers: scenario.routers(),
        routers_played: layers.last().map_or(0, |layer| layer.played),
        services: engine.catalogue.services.len() as u64,
        servers: engine.catalogue.servers(),
        records: engine.table(ROOT).map_or(0, |table| table.len() as u64),
        megabytes: engine.megabytes(),
        writes: Written {
            batches: engine.writers.batches,
            records: engine.writers.records,
            megabytes_per_second: engine.writers.bytes() as f64 / MEGA / scenario.duration.as_seconds(),
            refused: engine.refused,
        },
        layers,
        acknowledged: Propagation::of(&engine.acknowledging),
        recoveries: recoveries.collect(),
        different: scenario.compare.then(|| engine.different()),
        missed: Vec::new(),
    };
    report.missed = scenario.expect.missed(&report);
    report
}

impl Engine<'_> {
    fn layer(&self, layer: usize) -> Layer {
        let places: Vec<&Place> = self.places.iter().filter(|place| place.layer == layer).collect();
        let meter = &self.layers[layer];
        let processes: u64 = places.iter().map(|place| place.stands_for).sum();
        let seconds = (self.scenario.duration.nanos() - self.scenario.warmup.nanos()) as f64 / SECOND as f64;
        let all = |value: fn(&Flow) -> u64| -> f64 {
            let sum: u64 = places.iter().map(|place| value(&place.meter.all) * place.stands_for).sum();
            sum as f64 / seconds
        };
        let mean = |value: fn(&Flow) -> u64| all(value) / processes.max(1) as f64;
        let peak = |value: fn(&Flow) -> u64| {
            places.iter().map(|place| value(&place.meter.peak)).max().unwrap_or(0) as f64
        };
        let traffic = |value| Traffic { mean: mean(value) / MEGA, peak: peak(value) / MEGA };
        let (table, watchers) = self.memory(&places);
        Layer {
            name: self.name(layer),
            replica: (1..=self.scenario.replicas.len()).contains(&layer),
            processes,
            played: places.len() as u64,
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
            propagation: Propagation::of(&meter.calm),
            propagation_later: Propagation::of(&meter.later),
            course: meter.course.iter().map(point).collect(),
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

    /// Megabytes of the largest table, and of the watchers of the process that has most, all of those included that the played
    /// ones stand for.
    fn memory(&self, places: &[&Place]) -> (f64, f64) {
        let mut largest = (0.0_f64, 0.0_f64);
        for place in places {
            let Some(node) = &place.node else { continue };
            let (table, watchers) = node.size();
            let played = place.children.len().max(1) as f64;
            let all: u64 = place.children.values().map(|child| self.places[*child].alike).sum();
            largest.0 = largest.0.max(table as f64 / MEGA);
            largest.1 = largest.1.max(watchers as f64 / MEGA * all as f64 / played);
        }
        largest
    }

    fn megabytes(&self) -> f64 {
        let maps = self.catalogue.chunks() as f64 * f64::from(self.scenario.services.chunk_bytes);
        let endpoints = self.catalogue.servers() as f64 * f64::from(self.scenario.services.endpoint_bytes);
        (maps + endpoints) / MEGA
    }

    fn table(&self, id: Id) -> Option<&Table> {
        self.places[id].node.as_ref().map(|node| node.table())
    }

    /// Records that somebody who is played holds otherwise than the root.
    fn different(&self) -> u64 {
        let Some(root) = self.table(ROOT) else { return 0 };
        let differs = |id: Id| {
            let Some(table) = self.table(id) else { return 0 };
            let everything = root.len() == table.len() && self.places[id].wants.len() == 1;
            let wanted = if everything { table.len() } else { root.read(&self.places[id].wants).len() };
            let (mut same, mut other) = (0, 0);
            for (key, entry) in table.all() {
                if root.get(key) == Some(entry) { same += 1 } else { other += 1 }
            }
            other + wanted.saturating_sub(same)
        };
        (1..self.places.len()).map(|id| differs(id) as u64).sum()
    }
}

fn point(sample: &Sample) -> (f64, f64) {
    (sample.bytes as f64 / MEGA, sample.worst as f64 / 1e3)
}

fn recovery(event: &Happening, lost: &Lost) -> Recovery {
    let all_back = lost.back.filter(|_| lost.missing == 0);
    Recovery {
        event: what(&event.action),
        lost: lost.processes,
        seconds: all_back.map(|back| back.saturating_sub(lost.ended) as f64 / SECOND as f64),
        snapshots: lost.snapshots,
        snapshot_megabytes: lost.snapshot_bytes as f64 / MEGA,
    }
}

fn what(action: &Action) -> String {
    match action {
        Action::RestartRoot { lasts } => format!("root away for {lasts}"),
        Action::RestartReplicas { layer, region: None, lasts } => format!("{layer} away for {lasts}"),
        Action::RestartReplicas { layer, region: Some(region), lasts } => {
            format!("{layer} of {region} away for {lasts}")
        }
        Action::Cut { region, lasts } => format!("{region} cut off for {lasts}"),
        Action::Burst { records, over } => format!("{records} records in {over}"),
    }
}
