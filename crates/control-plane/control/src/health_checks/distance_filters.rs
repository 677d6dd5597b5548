use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::{
    DistanceFilter, MAX_MEASURED_REGIONS, MeasuredDistance, MeasuredDistances, Record, RecordKey, Region,
    is_plausible,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::{LogLimiter, record_encoding};
use tonic::Status;

use super::{Checks, distance_targets::DistanceTargets};
use crate::wall_clock::now_ms;

static IMPLAUSIBLE: LogLimiter = LogLimiter::new();

/// One filter for each pair of regions, keyed by source and destination.
#[derive(Debug, Default)]
pub(super) struct DistanceFilters(Mutex<BTreeMap<(Region, Region), DistanceFilter>>);

impl DistanceFilters {
    /// Filters reported distances. Returns the distances to record.
    fn observe(
        &self,
        from: &Region,
        reported: &[(Region, Duration)],
        recorded: &MeasuredDistances,
        targets: &DistanceTargets,
    ) -> BTreeMap<Region, Duration> {
        let mut filters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Keeps only filters for regions with targets, so that their number is bounded whatever a checker
        // reports.
        filters.retain(|(_, to), _| targets.contains_key(to));
        let known = reported.iter().filter(|(to, _)| to != from && targets.contains_key(to));
        let lasting = known.filter(|(to, round_trip)| {
            let recorded = recorded.to.get(to).map(|distance| distance.round_trip);
            filters.entry((from.clone(), to.clone())).or_default().observe(recorded, *round_trip)
        });
        lasting.cloned().collect()
    }
}

impl Checks {
    /// Filters the distances that a region's checker measured, and records lasting changes.
    pub(super) async fn report_distances(
        &self,
        from: &Region,
        reported: &[(Region, Duration)],
    ) -> Result<(), Status> {
        let implausible = reported.iter().filter(|(_, round_trip)| !is_plausible(*round_trip)).count();
        if implausible > 0
            && let Some(left_out) = IMPLAUSIBLE.next()
        {
            tracing::warn!(region = %from, implausible, left_out, "ignoring distances of 0 or above 10 s");
        }
        let targets = Arc::clone(&self.targets.borrow());
        if !targets.contains_key(from) && !self.declares_region(from) {
            return Err(Status::invalid_argument(format!(
                "region {from} has no endpoints for calls from other regions; declare it with 'kind: Topology' to have \
                 its distances measured"
            )));
        }
        let (recorded, _) = self.recorded_distances(from);
        let changed = self.filters.observe(from, reported, &recorded, &targets);
        if changed.is_empty() {
            return Ok(());
        }
        for (to, round_trip) in &changed {
            tracing::info!(%from, %to, ?round_trip, "distance changed");
        }
        let at_ms = now_ms();
        self.write(|| vec![self.record_op(from, &changed, at_ms)]).await
    }

    /// Whether a topology declares the region. Without this check, a region that only a checker names would be
    /// recorded forever.
    fn declares_region(&self, region: &Region) -> bool {
        let key = RecordKey::Regions;
        let entry = self.node.get(&key.to_string());
        match entry.map(|entry| record_encoding::decode(&key, &entry.value)) {
            Some(Ok(Record::Regions(regions))) => regions.regions.contains_key(region),
            _ => false,
        }
    }

    /// Returns the operation that records changed distances of a region, together with its unchanged ones.
    fn record_op(&self, from: &Region, changed: &BTreeMap<Region, Duration>, measured_at_ms: u64) -> Op {
        let (mut distances, revision) = self.recorded_distances(from);
        for (to, round_trip) in changed {
            let distance = MeasuredDistance { round_trip: *round_trip, measured_at_ms };
            distances.to.insert(to.clone(), distance);
        }
        while distances.to.len() > MAX_MEASURED_REGIONS {
            let oldest = distances.to.iter().min_by_key(|(_, distance)| distance.measured_at_ms);
            let Some(oldest) = oldest.map(|(region, _)| region.clone()) else { break };
            distances.to.remove(&oldest);
        }
        let key = RecordKey::MeasuredDistances(from.clone()).to_string();
        Op::put(key, record_encoding::encode(&Record::MeasuredDistances(distances)))
            .expecting(revision.map_or(Expect::Absent, Expect::Revision))
    }

    /// The recorded distances of a region, with the record's revision if it exists.
    fn recorded_distances(&self, from: &Region) -> (MeasuredDistances, Option<u64>) {
        let key = RecordKey::MeasuredDistances(from.clone());
        let Some(entry) = self.node.get(&key.to_string()) else { return Default::default() };
        let distances = match record_encoding::decode(&key, &entry.value) {
            Ok(Record::MeasuredDistances(distances)) => distances,
            _ => MeasuredDistances::default(),
        };
        (distances, Some(entry.revision))
    }
}
