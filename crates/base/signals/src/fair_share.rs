//! Fair shares of bounded space for rows. A service or tenant that reports many rows does not displace the rows of
//! others.

use std::collections::{BTreeMap, HashMap};

use fairmesh_model::{CountedBy, CountedPath, ServiceName, Tenant};

/// The service that reported the row and whose identity was checked. The other names in the row are unchecked claims.
/// `None` for a caller without an identity.
pub fn own_service(path: &CountedPath) -> Option<&ServiceName> {
    match path.by {
        CountedBy::Server => Some(&path.service),
        CountedBy::Caller => path.caller.as_ref(),
    }
}

/// Returns the services that exceed their share of `room`, with their shares. Tenants have max-min fair shares of
/// `room`, and the services of a tenant have max-min fair shares of the tenant's share. A service may be listed
/// several times.
pub fn beyond_shares<'a>(
    sizes: impl IntoIterator<Item = (Option<&'a ServiceName>, usize)>,
    room: usize,
) -> HashMap<Option<&'a ServiceName>, usize> {
    let mut tenants = BTreeMap::<Option<&Tenant>, BTreeMap<Option<&ServiceName>, usize>>::new();
    for (service, size) in sizes {
        let services = tenants.entry(service.map(|service| &service.tenant)).or_default();
        *services.entry(service).or_default() += size;
    }
    let share = max_min_share(tenants.values().map(|services| services.values().sum()), room);
    let beyond = tenants.into_values().flat_map(|services| {
        let share = max_min_share(services.values().copied(), share);
        services.into_iter().filter(move |(_, size)| *size > share).map(move |(service, _)| (service, share))
    });
    beyond.collect()
}

/// Returns the largest size that each may have, so that all together have at most `room`. Computed by max-min
/// fairness (Bertsekas and Gallager, Data Networks, section 6.5.2): what small sizes leave unused goes to the larger
/// ones. Plain equal parts were rejected because they waste that unused room.
fn max_min_share(sizes: impl Iterator<Item = usize>, mut room: usize) -> usize {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    let mut others = sizes.len();
    for size in sizes {
        let share = room / others;
        if size > share {
            return share;
        }
        room -= size;
        others -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> ServiceName {
        ServiceName::new(text).unwrap()
    }

    #[test]
    fn rows_of_large_service_or_tenant_are_cut_before_smaller_ones() {
        let [loud, quiet, bank] = ["shop/loud", "shop/quiet", "bank/rates"].map(name);
        let sizes = |loud_size| [(Some(&loud), loud_size), (Some(&quiet), 5), (Some(&bank), 40), (None, 10)];
        assert!(beyond_shares(sizes(45), 100).is_empty());
        assert_eq!(beyond_shares(sizes(500), 100), [(Some(&loud), 45)].into());
        let many: Vec<_> = (0..100).map(|n| name(&format!("ads/s{n}"))).collect();
        let crowd = many.iter().map(|service| (Some(service), 10));
        let beyond = beyond_shares(crowd.chain([(Some(&bank), 40)]), 200);
        assert_eq!(
            (beyond.len(), beyond[&Some(&many[0])]),
            (100, 1),
            "services of one tenant share its part"
        );
    }

    proptest! {
        #[test]
        fn fair_row_shares_fit_available_room(sizes in prop::collection::vec((0_usize..6, 0_usize..8, 0_usize..200), 0..60), room in 0_usize..2_000) {
            let owners: Vec<_> = sizes.iter().map(|(tenant, service, _)| name(&format!("t{tenant}/s{service}"))).collect();
            let rows = || owners.iter().map(Some).zip(sizes.iter().map(|(_, _, size)| *size));
            let mut sums = BTreeMap::<Option<&ServiceName>, usize>::new();
            rows().for_each(|(owner, size)| *sums.entry(owner).or_default() += size);
            let beyond = beyond_shares(rows(), room);
            let kept: usize = sums.iter().map(|(owner, size)| beyond.get(owner).map_or(*size, |share| *share)).sum();
            prop_assert!(kept <= room);
            prop_assert_eq!(beyond.is_empty(), sums.values().sum::<usize>() <= room);
        }
    }
}
