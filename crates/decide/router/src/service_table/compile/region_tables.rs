//! Compiles the region table of the caller's region.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_balancer::CandidateSet;
use fairmesh_model::{
    Label, MAX_TABLE_REGIONS, Region, RegionShares, ServiceKind, Share, TableForce, TableOrigin,
    TrafficShares, Zone, arith::hash_text, subset_for_share,
};

use super::{Compiler, Positions, len};
use crate::{
    TableInput,
    locality::PreferenceClass,
    service_table::{
        Tier,
        region_table::{ClassShares, CompiledTable, RegionEndpoints, SpareRegions, TableRegion},
        zones::CompiledZones,
    },
};

/// A table in force: the regions that calls may reach, with this client's endpoints in each.
pub(super) struct UsableTable<'a> {
    input: TableInput<'a>,
    /// The table's shares, adjusted to the regions' capacity.
    shares: &'a TrafficShares,
    force: TableForce,
    regions: BTreeMap<&'a Region, Positions>,
    /// The zones used by callers in the caller's zone, with their shares; empty if calls prefer no zone.
    zones: BTreeMap<&'a Zone, (Share, Positions)>,
    /// Regions that take over the calls of a region that cannot serve, each with its part of the total power. Only
    /// for tables of a planner.
    spare: BTreeMap<&'a Region, (Share, Positions)>,
}

impl Compiler<'_> {
    /// Returns the table if it decides calls. `localOnly` takes precedence over tables.
    pub(super) fn usable_table<'t>(&'t self, shares: &'t TrafficShares) -> Option<UsableTable<'t>> {
        let input = self.input.table.filter(|_| !self.input.policy.locality.local_only)?;
        let force = input.table.force(input.age);
        if force == TableForce::Lapsed {
            return None;
        }
        // The greatest share of a region over all classes determines the number of connections.
        let mut greatest: BTreeMap<&Region, Share> = BTreeMap::new();
        for (region, share) in shares.iter().flat_map(|(_, shares)| &shares.to) {
            let kept = greatest.entry(region).or_insert(*share);
            *kept = (*kept).max(*share);
        }
        let usable = greatest.into_iter().filter(|(region, _)| self.may_go_to(region));
        let regions: BTreeMap<&Region, Positions> =
            usable.map(|(region, share)| (region, self.table_region(region, None, share))).collect();
        let zones = if regions.contains_key(self.locality.home()) {
            self.usable_zones(input)
        } else {
            BTreeMap::new()
        };
        Some(UsableTable { input, shares, force, regions, zones, spare: self.spare_regions(input) })
    }

    /// Returns the serving regions by power. Empty for a table written by hand, which no planner corrects, so that
    /// rings decide. Also empty for a shard map, which itself determines the regions that hold a copy.
    fn spare_regions(&self, input: TableInput<'_>) -> BTreeMap<&Region, (Share, Positions)> {
        if input.table.origin == TableOrigin::ByHand || self.input.service.kind == ServiceKind::Sharded {
            return BTreeMap::new();
        }
        let mut powers: BTreeMap<&Region, u64> = BTreeMap::new();
        for (position, endpoint) in self.endpoints.iter().enumerate() {
            if self.class(position) == Some(PreferenceClass::Serving) {
                *powers.entry(&endpoint.location.region).or_default() += u64::from(self.powers[position]);
            }
        }
        powers.retain(|region, _| self.may_go_to(region));
        let all: u64 = powers.values().sum();
        let part = |power: u64| power.saturating_mul(Share::ALL.millionths().into()) / all.max(1);
        let share = |power| Share::of_millionths(part(power).max(1) as u32).unwrap_or(Share::ALL);
        let regions = powers.into_iter().take(MAX_TABLE_REGIONS);
        let regions = regions.map(|(region, power)| (region, share(power)));
        regions.map(|(region, share)| (region, (share, self.table_region(region, None, share)))).collect()
    }

    /// Returns the zones used by callers of this zone, without zones that have no serving endpoint. For keys and shard
    /// maps, endpoints are chosen without regard to zones.
    fn usable_zones<'t>(&self, input: TableInput<'t>) -> BTreeMap<&'t Zone, (Share, Positions)> {
        let own = self.locality.zone().filter(|_| self.input.service.kind == ServiceKind::Replicated);
        let shares = own.and_then(|zone| input.table.zones.get(zone));
        let zones = shares.into_iter().flatten().map(|(zone, share)| {
            (zone, (*share, self.table_region(self.locality.home(), Some(zone), *share)))
        });
        zones.filter(|(_, (_, tier))| tier.total > 0).collect()
    }

    /// Whether rings and drains let tables use a region. Callers inside a draining region keep using it.
    pub(super) fn may_go_to(&self, region: &Region) -> bool {
        let topology = &self.input.regions.regions;
        let is_draining =
            *region != self.input.location.region && topology.get(region).is_some_and(|info| info.draining);
        let is_excluded =
            self.locality.regions().any(|(known, distance)| known == region && distance.ring.is_none());
        !is_draining && !is_excluded
    }

    /// Returns the serving endpoints of a region or of one of its zones. For replicated services, this client's subset,
    /// sized by the share. The table may widen subsets that reach too few endpoints of a region.
    fn table_region(&self, region: &Region, zone: Option<&Zone>, share: Share) -> Positions {
        let serves = |position: &usize| {
            let location = &self.endpoints[*position].location;
            location.region == *region
                && zone.is_none_or(|zone| location.zone.as_ref() == Some(zone))
                && self.class(*position) == Some(PreferenceClass::Serving)
        };
        let positions: Vec<usize> = (0..self.endpoints.len()).filter(serves).collect();
        let rank = self.locality.rank(PreferenceClass::Serving, self.locality.distance(region));
        let keep = match (self.input.service.kind, self.input.policy.balancing.subset) {
            (ServiceKind::Sharded | ServiceKind::ConsistentHash, _) | (_, 0) => 0,
            (ServiceKind::Replicated, own) => {
                let wider = self.input.table.and_then(|input| input.table.subsets.get(region));
                let whole = own.max(wider.copied().unwrap_or_default());
                subset_for_share(whole, share) as usize
            }
        };
        let candidates = self.subset(&positions, keep);
        Tier { rank: rank.unwrap_or(u32::MAX), total: positions.len() as u32, candidates }
    }

    /// The compiled table.
    pub(super) fn compiled_table(&self, table: &UsableTable<'_>, indices: &[u32]) -> CompiledTable {
        let names: Vec<&Region> = table.regions.keys().copied().collect();
        let shares = |shares: &RegionShares| {
            let position = |region: &Region| names.binary_search(&region).ok();
            // There are at most 64 regions.
            let regions = shares
                .to
                .iter()
                .filter_map(|(region, share)| Some((position(region)? as u8, share.millionths())));
            let dropped = if table.force == TableForce::Full { shares.dropped } else { Share::NONE };
            ClassShares { dropped, regions: regions.collect() }
        };
        let source = table.shares;
        let classes = source.classes.iter().map(|(class, of): (&Label, _)| (class.clone(), shares(of)));
        CompiledTable {
            default: source.default.as_ref().map(shares),
            classes: classes.collect(),
            regions: table
                .regions
                .iter()
                .map(|(name, tier)| self.compiled_region(name, tier, indices))
                .collect(),
            region_of: self.region_of(&names, indices),
            zones: self.compiled_zones(table, indices),
            spare: self.compiled_spare(table, indices),
            members: table
                .members(self.locality.home())
                .into_iter()
                .map(|position| indices[position])
                .collect(),
            origin: match (table.input.table.origin, table.force) {
                (TableOrigin::ByHand, _) => "written by hand",
                (TableOrigin::Planned(_), TableForce::Full) => "planned",
                (TableOrigin::Planned(_), _) => "planned, not confirmed lately, so that nothing is dropped",
            },
        }
    }

    fn compiled_zones(&self, table: &UsableTable<'_>, indices: &[u32]) -> Option<Box<CompiledZones>> {
        let region = table.regions.keys().position(|region| *region == self.locality.home())? as u8;
        let zone = |(zone, (_, tier)): (&&Zone, &(Share, Positions))| {
            ((*zone).clone(), self.compiled_tier(tier, indices))
        };
        // There are at most 16 zones.
        let shares =
            (0_u8..).zip(table.zones.values()).map(|(position, (share, _))| (position, share.millionths()));
        let zones =
            CompiledZones { region, shares: shares.collect(), zones: table.zones.iter().map(zone).collect() };
        (!zones.zones.is_empty()).then(|| Box::new(zones))
    }

    fn compiled_spare(&self, table: &UsableTable<'_>, indices: &[u32]) -> Option<Box<SpareRegions>> {
        let shares = (0_u8..).zip(table.spare.values());
        let region =
            |(name, (_, tier)): (&&Region, &(Share, Positions))| self.compiled_region(name, tier, indices);
        let spare = SpareRegions {
            // There are at most 64 regions.
            shares: shares.map(|(position, (share, _))| (position, share.millionths())).collect(),
            regions: table.spare.iter().map(region).collect(),
        };
        (!spare.regions.is_empty()).then(|| Box::new(spare))
    }

    fn compiled_tier(&self, tier: &Positions, indices: &[u32]) -> Tier<CandidateSet> {
        let member = |&position: &usize| (indices[position], self.powers[position]);
        let candidates = CandidateSet::new(&tier.candidates.iter().map(member).collect::<Vec<_>>());
        Tier { rank: tier.rank, total: tier.total, candidates }
    }

    fn compiled_region(&self, name: &Region, tier: &Positions, indices: &[u32]) -> TableRegion {
        let Tier { rank, total, candidates } = tier;
        let (rank, total) = (*rank, *total);
        let endpoints = match self.input.service.kind {
            ServiceKind::Replicated => RegionEndpoints::Replicated(self.compiled_tier(tier, indices)),
            ServiceKind::ConsistentHash => {
                RegionEndpoints::Hashed(Tier { rank, total, candidates: self.hashed(candidates, indices) })
            }
            ServiceKind::Sharded => RegionEndpoints::Sharded,
        };
        TableRegion { name: name.clone(), hash: hash_text(name.as_str()), rank, endpoints }
    }

    /// Returns the position of each endpoint's region, by endpoint index.
    fn region_of(&self, names: &[&Region], indices: &[u32]) -> Box<[u8]> {
        if self.input.service.kind != ServiceKind::Sharded {
            return Box::default();
        }
        let mut region_of = vec![CompiledTable::NO_REGION; len(indices)];
        for (endpoint, &index) in self.endpoints.iter().zip(indices) {
            if let Ok(position) = names.binary_search(&&endpoint.location.region) {
                region_of[index as usize] = position as u8;
            }
        }
        region_of.into_boxed_slice()
    }
}

impl UsableTable<'_> {
    /// This client's endpoints in each zone and region.
    pub(super) fn tiers(&self) -> impl Iterator<Item = &Positions> {
        self.zones.values().map(|(_, tier)| tier).chain(self.regions.values())
    }

    /// Returns the endpoints that share calls, each once. If the calls that stay in the region are divided among
    /// zones, endpoints of the region that belong to none of these zones' sets are left out.
    pub(super) fn members(&self, home: &Region) -> BTreeSet<usize> {
        let divided = |region: &Region| region == home && !self.zones.is_empty();
        let regions = self.regions.iter().filter(|(region, _)| !divided(region)).map(|(_, tier)| tier);
        let tiers = self.zones.values().map(|(_, tier)| tier).chain(regions);
        tiers.flat_map(|tier| &tier.candidates).copied().collect()
    }
}
