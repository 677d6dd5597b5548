use std::{
    collections::{BTreeMap, BTreeSet},
    iter::Zip,
    time::Duration,
    vec,
};

use fairmesh_model::{CallPath, CallRates, Region, ServerRates, ServiceName, Tenant, TrafficReport};

/// The sum of all reports about one service. The age of the data includes the time since each report arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceSum {
    /// Calls, in the order of their paths.
    pub calls: Vec<(CallPath, CallRates)>,
    /// Servers, by their region.
    pub servers: BTreeMap<Region, ServerRates>,
    /// Whether data is missing because reports had no room for it.
    pub is_incomplete: bool,
}

/// Iterator over the sums of services in the order of their names. Each sum is computed when the iterator reaches its
/// service.
///
/// The rows of reports are grouped by reference, and each sum is computed from the rows of its service. One sum of
/// all services was rejected: it would copy every row while the reader still holds its previous sums.
#[derive(Debug)]
pub struct ServiceSums<'a> {
    heard: BTreeSet<Region>,
    incomplete: BTreeSet<&'a ServiceName>,
    incomplete_tenants: BTreeSet<&'a Tenant>,
    all_incomplete: bool,
    rows: Zip<vec::IntoIter<&'a ServiceName>, vec::IntoIter<ServiceRows<'a>>>,
}

/// The rows of one service in all reports.
#[derive(Clone, Debug, Default)]
struct ServiceRows<'a> {
    calls: Vec<Row<&'a CallPath, &'a CallRates>>,
    servers: Vec<Row<&'a Region, &'a ServerRates>>,
}

/// A row of a report, and the time since the report arrived.
#[derive(Clone, Copy, Debug)]
struct Row<K, R> {
    key: K,
    rates: R,
    kept: Duration,
}

impl<'a> ServiceSums<'a> {
    /// Groups the rows of reports by these services. Each report is given with the time since it arrived.
    pub(crate) fn group(
        reports: impl Iterator<Item = (&'a TrafficReport, Duration)>,
        services: &'a BTreeSet<ServiceName>,
    ) -> Self {
        let names: Vec<&ServiceName> = services.iter().collect();
        let mut rows = vec![ServiceRows::default(); names.len()];
        let (mut heard, mut incomplete, mut all_incomplete) = (BTreeSet::new(), BTreeSet::new(), false);
        let mut incomplete_tenants = BTreeSet::new();
        for (report, kept) in reports {
            heard.extend(report.regions.iter().cloned());
            incomplete.extend(&report.incomplete);
            incomplete_tenants.extend(&report.incomplete_tenants);
            all_incomplete |= report.all_incomplete;
            // Rows of the same service are adjacent.
            let mut position = Position { names: &names, last: None };
            for (key, rates) in &report.calls {
                if let Some(at) = position.of(&key.service) {
                    rows[at].calls.push(Row { key, rates, kept });
                }
            }
            for ((service, key), rates) in &report.servers {
                if let Some(at) = position.of(service) {
                    rows[at].servers.push(Row { key, rates, kept });
                }
            }
        }
        Self { heard, incomplete, incomplete_tenants, all_incomplete, rows: names.into_iter().zip(rows) }
    }

    /// Marks a service as incomplete.
    pub(crate) fn note_incomplete(&mut self, service: &'a ServiceName) {
        self.incomplete.insert(service);
    }

    /// The regions named by the reports.
    pub fn heard(&self) -> &BTreeSet<Region> {
        &self.heard
    }
}

impl<'a> Iterator for ServiceSums<'a> {
    type Item = (&'a ServiceName, ServiceSum);

    fn next(&mut self) -> Option<Self::Item> {
        let (service, rows) = self.rows.next()?;
        let is_named = self.incomplete.contains(service) || self.incomplete_tenants.contains(&service.tenant);
        let is_incomplete = self.all_incomplete || is_named;
        Some((service, rows.sum(is_incomplete)))
    }
}

impl ServiceRows<'_> {
    fn sum(mut self, is_incomplete: bool) -> ServiceSum {
        self.calls.sort_by(|one, other| one.key.cmp(other.key));
        let of_path = |rows: &[Row<&CallPath, &CallRates>]| {
            let mut sum = CallRates::default();
            for row in rows {
                let mut rates = *row.rates;
                rates.grow_older(row.kept);
                sum += rates;
            }
            (rows[0].key.clone(), sum)
        };
        let mut calls: Vec<_> = self.calls.chunk_by(|one, next| one.key == next.key).map(of_path).collect();
        calls.shrink_to_fit();
        let mut servers = BTreeMap::<Region, ServerRates>::new();
        for row in self.servers {
            let mut rates = row.rates.clone();
            rates.grow_older(row.kept);
            *servers.entry(row.key.clone()).or_default() += &rates;
        }
        ServiceSum { calls, servers, is_incomplete }
    }
}

/// Finds the position of a service in `names`. Repeated lookups of the same service are fast.
struct Position<'a, 'b> {
    /// Sorted.
    names: &'b [&'a ServiceName],
    last: Option<(&'a ServiceName, Option<usize>)>,
}

impl<'a> Position<'a, '_> {
    fn of(&mut self, service: &'a ServiceName) -> Option<usize> {
        match self.last {
            Some((last, at)) if last == service => at,
            _ => {
                let at = self.names.binary_search(&service).ok();
                self.last = Some((service, at));
                at
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ReportSource, ReportSums, SumLimits};

    fn name(number: usize) -> ServiceName {
        ServiceName::new(format!("shop/s{number}")).unwrap()
    }

    fn region(number: usize) -> Region {
        Region::new(format!("r{number}")).unwrap()
    }

    /// A report of one process on calls and servers of services between regions.
    fn report(reporter: u64, rows: &[(usize, usize, usize, u64)]) -> TrafficReport {
        let mut report = TrafficReport {
            reporter,
            interval: Duration::from_secs(5),
            incomplete: rows.iter().filter(|row| row.3 > 900).map(|row| name(row.0)).collect(),
            ..TrafficReport::default()
        };
        for &(service, from, to, calls) in rows {
            let path = CallPath {
                service: name(service),
                from: region(from),
                to: Some(region(to)),
                class: None,
                caller: None,
                parent: None,
                from_zone: None,
                to_zone: None,
            };
            let rates = CallRates { offered: calls, attempts: calls, ..CallRates::default() };
            report.calls.insert(path, rates);
            let servers = ServerRates { servers: 1, received: calls, ..ServerRates::default() };
            report.servers.insert((name(service), region(to)), servers);
            report.regions.insert(region(from));
        }
        report
    }

    proptest! {
        /// Compares each service's sum with the sum of all services at once.
        #[test]
        fn report_sum_of_one_service_equals_its_part_of_total_sum(
            reports in prop::collection::vec(
                prop::collection::vec((0_usize..6, 0_usize..3, 0_usize..3, 0_u64..1_000), 0..12), 0..8),
            wanted in prop::collection::btree_set(0_usize..8, 0..6),
        ) {
            let mut sums = ReportSums::new(SumLimits { reporters: 6, rows: 100, served: 0, limited_percent: 50 });
            for (at, rows) in reports.iter().enumerate() {
                sums.record(&ReportSource::of_mesh(), report(at as u64 % 5, rows), 100 * at as u64);
            }
            let services: BTreeSet<ServiceName> = wanted.into_iter().map(name).collect();
            let all = sums.sum_of_all(1_000);
            let by_service = sums.sums_by_service(&services, 1_000);
            prop_assert_eq!(by_service.heard(), &all.regions);
            let by_service: Vec<_> = by_service.map(|(name, sum)| (name.clone(), sum)).collect();
            prop_assert!(by_service.iter().map(|(name, _)| name).eq(&services));
            for (name, sum) in by_service {
                let calls = all.calls.iter().filter(|(path, _)| path.service == name);
                prop_assert!(calls.eq(sum.calls.iter().map(|(path, rates)| (path, rates))));
                let servers = all.servers.iter().filter(|((service, _), _)| *service == name);
                prop_assert!(servers.map(|((_, region), rates)| (region, rates)).eq(&sum.servers));
                prop_assert_eq!(all.is_incomplete(&name), sum.is_incomplete);
            }
        }
    }
}
