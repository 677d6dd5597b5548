//! What bytes between regions cost: counts of calls times the prices of the topology, by which the optimizer plans as well.

use std::collections::BTreeMap;

use fairmesh_model::{CallCounts, CountedBy, CountedPath, Dollars, Egress, Region, ServiceName, Zone};

/// Bytes that a price is for.
const PRICED_BYTES: u128 = 1_000_000_000;
/// Pairs of regions that [`EgressTotals`] tell apart; bytes of further pairs are not counted.
const MAX_PAIRS: usize = 1_024;

/// Whose bytes are added up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EgressPath {
    /// The calling service; `None` for callers that are no service.
    pub caller: Option<ServiceName>,
    /// The called service.
    pub service: ServiceName,
    /// The region and zone of the callers. Zones are known for services that prefer the zone of their callers.
    pub from: (Region, Option<Zone>),
    /// The region and zone of the servers.
    pub to: (Region, Option<Zone>),
}

/// Bytes of calls, and their price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressSum {
    /// Calls, each once however often it was attempted.
    pub calls: u64,
    /// Bytes of request bodies.
    pub request_bytes: u64,
    /// Bytes of response bodies.
    pub response_bytes: u64,
    /// Bytes between different zones of one region, which have no price.
    pub zone_bytes: u64,
    /// The price of all bytes in units of 10⁻²¹ dollars, so that sums of small responses are exact.
    price: u128,
}

/// The bill of calls by path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EgressBill(BTreeMap<EgressPath, EgressSum>);

/// Bytes by sending and receiving region since a start, with their price at the time.
#[derive(Clone, Debug, Default)]
pub struct EgressTotals {
    by_pair: BTreeMap<(Region, Region), EgressSum>,
    /// Bytes of pairs that are not told apart.
    left_out: u64,
}

impl EgressSum {
    /// The price.
    pub fn dollars(&self) -> f64 {
        self.price as f64 / PRICED_BYTES as f64 / Dollars::PER_DOLLAR as f64
    }

    /// Bytes of requests and responses.
    pub fn bytes(&self) -> u64 {
        self.request_bytes.saturating_add(self.response_bytes)
    }

    /// Adds other bytes.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.calls, other.calls),
            (&mut self.request_bytes, other.request_bytes),
            (&mut self.response_bytes, other.response_bytes),
            (&mut self.zone_bytes, other.zone_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.price = self.price.saturating_add(other.price);
    }
}

/// The regions of calls that their callers counted. What servers count are the same calls again, and calls of clients outside of
/// the mesh, whose region is not known.
fn regions(path: &CountedPath) -> Option<(&Region, &Region)> {
    (path.by == CountedBy::Caller).then_some(())?;
    Some((path.from.as_ref()?, path.to.as_ref()?))
}

fn price(bytes: u64, price: Dollars) -> u128 {
    u128::from(bytes) * u128::from(price.picodollars())
}

impl EgressBill {
    /// Adds the bytes of counted calls: requests at the price of the way there, responses at that of the way back.
    pub fn add(&mut self, path: &CountedPath, counts: &CallCounts, prices: &Egress) {
        let Some((from, to)) = regions(path) else { return };
        let (request_bytes, response_bytes) = (counts.request_bytes(), counts.response_bytes());
        let crosses_zones = from == to
            && path.from_zone.as_ref().zip(path.to_zone.as_ref()).is_some_and(|(from, to)| from != to);
        let sum = EgressSum {
            calls: counts.calls(),
            request_bytes,
            response_bytes,
            zone_bytes: if crosses_zones { request_bytes.saturating_add(response_bytes) } else { 0 },
            price: price(request_bytes, prices.price(from, to))
                + price(response_bytes, prices.price(to, from)),
        };
        let path = EgressPath {
            caller: path.caller.clone(),
            service: path.service.clone(),
            from: (from.clone(), path.from_zone.clone()),
            to: (to.clone(), path.to_zone.clone()),
        };
        self.0.entry(path).or_default().add(&sum);
    }

    /// The sums of paths with the same key, the dearest first.
    pub fn grouped<K: Ord>(&self, key: impl Fn(&EgressPath) -> K) -> Vec<(K, EgressSum)> {
        let mut groups = BTreeMap::<K, EgressSum>::new();
        for (path, sum) in &self.0 {
            groups.entry(key(path)).or_default().add(sum);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.price, sum.bytes())));
        groups
    }

    /// The sum of all paths.
    pub fn total(&self) -> EgressSum {
        let mut total = EgressSum::default();
        self.0.values().for_each(|sum| total.add(sum));
        total
    }
}

impl EgressTotals {
    /// Adds the bytes of counted calls between different regions. Those of regions that are not known are left out: reporters name
    /// regions freely, and invented ones would take the room of others for ever.
    pub fn add(
        &mut self,
        path: &CountedPath,
        counts: &CallCounts,
        prices: &Egress,
        is_known: impl Fn(&Region) -> bool,
    ) {
        let Some((from, to)) = regions(path).filter(|(from, to)| from != to) else { return };
        for (from, to, bytes) in [(from, to, counts.request_bytes()), (to, from, counts.response_bytes())] {
            let pair = (from.clone(), to.clone());
            let has_room = || self.by_pair.len() < MAX_PAIRS && is_known(from) && is_known(to);
            if self.by_pair.contains_key(&pair) || has_room() {
                let price = price(bytes, prices.price(from, to));
                let sum = EgressSum { request_bytes: bytes, price, ..EgressSum::default() };
                self.by_pair.entry(pair).or_default().add(&sum);
            } else {
                self.left_out = self.left_out.saturating_add(bytes);
            }
        }
    }

    /// Bytes left out, of regions that are not known or of too many pairs.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Bytes and dollars by sending and receiving region.
    pub fn iter(&self) -> impl Iterator<Item = (&Region, &Region, u64, f64)> {
        self.by_pair.iter().map(|((from, to), sum)| (from, to, sum.bytes(), sum.dollars()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    fn path(caller: &str, (from, to): (&str, &str), by: CountedBy) -> CountedPath {
        CountedPath {
            service: ServiceName::new("shop/cart").unwrap(),
            caller: Some(ServiceName::new(caller).unwrap()),
            by,
            class: None,
            from: Some(region(from)),
            to: Some(region(to)),
            from_zone: None,
            to_zone: None,
        }
    }

    fn prices() -> Egress {
        let amount = |text: &str| text.parse().unwrap();
        let prices = [((region("us"), region("eu")), amount("0.08"))].into();
        Egress { price: amount("0.02"), prices, ..Egress::default() }
    }

    /// Calls with bodies of a gigabyte there and two gigabytes back.
    fn calls() -> CallCounts {
        CallCounts::ZERO.with_totals([10, 0, 0, 1_000_000_000, 2_000_000_000])
    }

    #[test]
    fn egress_bill_charges_each_direction_its_price_and_each_call_once() {
        let mut bill = EgressBill::default();
        bill.add(&path("shop/web", ("eu", "us"), CountedBy::Caller), &calls(), &prices());
        bill.add(&path("shop/web", ("eu", "us"), CountedBy::Server), &calls(), &prices());
        bill.add(&path("shop/web", ("eu", "eu"), CountedBy::Caller), &calls(), &prices());
        bill.add(&path("shop/ads", ("us", "eu"), CountedBy::Caller), &calls(), &prices());
        let by_caller = bill.grouped(|path| path.caller.clone().unwrap().to_string());
        let shown: Vec<_> =
            by_caller.iter().map(|(caller, sum)| (caller.as_str(), sum.calls, sum.dollars())).collect();
        // 1 GB at $0.02 and 2 GB at $0.08; 1 GB at $0.08 and 2 GB at $0.02.
        assert_eq!(shown, [("shop/web", 20, 0.18), ("shop/ads", 10, 0.12)]);
        assert_eq!((bill.total().bytes(), bill.total().dollars()), (9_000_000_000, 0.3));
    }

    #[test]
    fn egress_bill_charges_nothing_between_zones_of_region() {
        let zone = |name: &str| Some(Zone::new(name).unwrap());
        let within = path("shop/web", ("eu", "eu"), CountedBy::Caller);
        let across = CountedPath { from_zone: zone("a"), to_zone: zone("b"), ..within };
        let mut bill = EgressBill::default();
        bill.add(&across, &calls(), &prices());
        assert_eq!((bill.total().zone_bytes, bill.total().dollars()), (3_000_000_000, 0.0));
    }

    #[test]
    fn egress_totals_are_per_direction_and_keep_price_at_time_of_call() {
        let mut totals = EgressTotals::default();
        let path = path("shop/web", ("eu", "us"), CountedBy::Caller);
        totals.add(&path, &calls(), &prices(), |_| true);
        totals.add(&path, &calls(), &Egress::default(), |_| true);
        let (eu, us) = (region("eu"), region("us"));
        let expected = [(&eu, &us, 2_000_000_000, 0.02), (&us, &eu, 4_000_000_000, 0.16)];
        assert_eq!(totals.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn egress_totals_leave_out_unknown_regions() {
        let mut totals = EgressTotals::default();
        let is_known = |region: &Region| ["eu", "us"].contains(&region.as_str());
        for invented in 0..MAX_PAIRS {
            let path = path("shop/web", ("eu", &format!("x{invented}")), CountedBy::Caller);
            totals.add(&path, &calls(), &prices(), is_known);
        }
        assert_eq!((totals.iter().count(), totals.left_out()), (0, 3_000_000_000 * MAX_PAIRS as u64));
        totals.add(&path("shop/web", ("eu", "us"), CountedBy::Caller), &calls(), &prices(), is_known);
        assert_eq!(totals.iter().count(), 2);
    }
}
