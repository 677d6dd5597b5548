//! Tables of the planner and records of the routing information base.

use std::collections::BTreeMap;

use fairmesh_model::{Label, Region, RegionShares, Share, TrafficShares};
use fairmesh_te::{ClassShares, MILLIONTHS, RegionTable, Tables, WHOLE};

use crate::facts::StoredTable;

/// The shares of a table as a record has them.
pub(crate) fn to_shares(table: &RegionTable, regions: &[Region], classes: &[Label]) -> TrafficShares {
    table.to_shares(regions, classes)
}

/// The tables that are in force, to continue from. Without one, calls are local.
pub(crate) fn from_stored(
    stored: &BTreeMap<Region, StoredTable>,
    regions: &[Region],
    classes: &[Label],
) -> Tables {
    let mut tables = Tables::local(regions.len(), classes.len() + 1);
    for (home, (region, table)) in regions.iter().zip(&mut tables.sources).enumerate() {
        let Some(StoredTable { table: stored, .. }) = stored.get(region) else { continue };
        let default = stored.shares.default.as_ref();
        let own = classes.iter().map(|class| stored.shares.classes.get(class).or(default));
        for (class, shares) in table.classes.iter_mut().zip(std::iter::once(default).chain(own)) {
            if let Some(shares) = shares {
                *class = from_region_shares(shares, regions, home);
            }
        }
    }
    tables
}

/// What rounding and regions that are gone leave goes home.
fn from_region_shares(stored: &RegionShares, regions: &[Region], home: usize) -> ClassShares {
    let of_whole = |share: &Share| share.millionths() / MILLIONTHS;
    let mut shares: Vec<u32> =
        regions.iter().map(|region| stored.to.get(region).map_or(0, of_whole)).collect();
    let dropped = of_whole(&stored.dropped);
    shares[home] += WHOLE.saturating_sub(dropped + shares.iter().sum::<u32>());
    ClassShares { shares, dropped }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{RegionTable as Record, TableOrigin};

    use super::*;

    #[test]
    fn region_tables_round_trip_through_records() {
        let regions = ["ap", "eu", "us"].map(|name| Region::new(name).unwrap());
        let classes = [Label::new("bulk").unwrap()];
        let row = |shares: [u32; 3], dropped| ClassShares { shares: shares.into(), dropped };
        let mut tables = Tables::local(3, 2);
        tables.sources[1].classes = vec![row([100, 9_900, 0], 0), row([0, 3_000, 5_000], 2_000)];
        let shares = to_shares(&tables.sources[1], &regions, &classes);
        let record = Record::new(shares, TableOrigin::ByHand);
        assert_eq!(record.validate(), Ok(()));
        let stored = [(regions[1].clone(), StoredTable { table: record, revision: 1 })];
        assert_eq!(from_stored(&stored.into(), &regions, &classes), tables);
    }

    #[test]
    fn shares_of_vanished_regions_return_to_callers_region() {
        let [ap, eu, us] = ["ap", "eu", "us"].map(|name| Region::new(name).unwrap());
        let share = |percent: u32| Share::of_millionths(percent * 10_000).unwrap();
        let to = [(eu.clone(), share(60)), (us, share(30))].into();
        let shares = RegionShares { to, dropped: share(10) };
        let shares = TrafficShares { default: Some(shares), ..TrafficShares::default() };
        let table = Record::new(shares, TableOrigin::ByHand);
        let stored = [(eu.clone(), StoredTable { table, revision: 1 })].into();
        let tables = from_stored(&stored, &[ap, eu], &[]);
        assert_eq!(tables.of(1, 0), &ClassShares { shares: vec![0, 9_000], dropped: 1_000 });
    }
}
