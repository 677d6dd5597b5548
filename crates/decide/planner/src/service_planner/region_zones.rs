//! The zones of each region, of services that prefer the zone of their callers.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{MAX_TABLE_ZONES, Region, Share, Zone, ZoneShares};
use fairmesh_te::{WHOLE, ZoneState};

use super::ServicePlanner;
use crate::facts::{ServiceFacts, ZoneRates};

/// Zones of one region.
#[derive(Clone, Debug, Default)]
pub struct RegionZones {
    /// In the order of names.
    names: Vec<Zone>,
    state: ZoneState,
    /// By the zone of the callers; empty where no zone is preferred.
    pub shares: BTreeMap<Zone, ZoneShares>,
    /// Why no zone is preferred.
    pub refusal: Option<String>,
    /// What is sent from zone to zone.
    pub rates: BTreeMap<(Zone, Zone), ZoneRates>,
}

impl ServicePlanner {
    /// Divides the calls that stay in each region among its zones.
    pub(super) fn plan_zones(&mut self, facts: &ServiceFacts) {
        if !facts.zone_first {
            self.zones.clear();
            return;
        }
        let regions = &self.regions;
        self.zones.retain(|region, _| regions.contains(region));
        for region in regions {
            self.zones.entry(region.clone()).or_default().plan(region, facts);
        }
    }

    /// The shares of the zones of a region.
    pub(super) fn zone_shares(&self, region: &Region) -> BTreeMap<Zone, ZoneShares> {
        self.zones.get(region).map(|zones| zones.shares.clone()).unwrap_or_default()
    }
}

impl RegionZones {
    fn plan(&mut self, region: &Region, facts: &ServiceFacts) {
        let planned = self.divide(region, facts);
        // Where no call stays, there is nothing that could prefer a zone.
        self.refusal = planned.as_ref().err().filter(|_| facts.has_local_calls(region)).cloned();
        self.shares = planned.unwrap_or_default();
        self.rates = facts.zone_rates(region);
    }

    /// Bytes of responses per second from other zones than the caller's.
    pub fn crossing_bytes(&self) -> f64 {
        self.rates.iter().filter(|((from, to), _)| from != to).map(|(_, rates)| rates.bytes).sum()
    }

    /// Without reports of callers with a zone, and where servers without one could not be used, nothing is preferred.
    fn divide(
        &mut self,
        region: &Region,
        facts: &ServiceFacts,
    ) -> Result<BTreeMap<Zone, ZoneShares>, String> {
        let power = facts.zone_powers(region);
        let demand = facts.zone_demand(region);
        if power.contains_key(&None) {
            return Err(format!(
                "serving endpoints in {region} have no zone: start their agents with --zone"
            ));
        }
        let names: BTreeSet<&Zone> = power.keys().flatten().chain(demand.keys()).collect();
        let names: Vec<Zone> = names.into_iter().cloned().collect();
        if names.len() > MAX_TABLE_ZONES {
            return Err(format!("{} zones of {region} are more than a table has", names.len()));
        }
        if demand.is_empty() {
            return Err(format!("no caller in {region} reports its zone"));
        }
        if self.names != names {
            *self = Self { names, ..Self::default() };
        }
        let of =
            |zone: &Zone| (demand.get(zone).copied().unwrap_or_default(), power.get(&Some(zone.clone())));
        let (demand, power): (Vec<f64>, Vec<f64>) = self
            .names
            .iter()
            .map(of)
            .map(|(demand, power)| (demand, power.copied().unwrap_or_default()))
            .unzip();
        let planned = self.state.plan(&demand, &power);
        let rows = self.names.iter().zip(planned).filter(|(_, row)| !row.is_empty());
        Ok(rows.map(|(from, row)| (from.clone(), to_shares(&self.names, row))).collect())
    }
}

fn to_shares(names: &[Zone], row: &[u32]) -> ZoneShares {
    let all = Share::ALL.millionths();
    let share = |part: u32| Share::of_millionths(part * (all / WHOLE)).unwrap_or(Share::ALL);
    let used = names.iter().zip(row).filter(|(_, part)| **part > 0);
    used.map(|(zone, part)| (zone.clone(), share(*part))).collect()
}
