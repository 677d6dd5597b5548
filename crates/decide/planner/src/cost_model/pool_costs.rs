use std::collections::BTreeMap;

use fairmesh_model::{Label, Region, ServedPath, ServedRates, ServerRates, ServiceName, TrafficReport};

use super::{LatencyFit, LatencyObservation, PoolLatency, WorkFit, WorkRegression};

/// The most pools; further ones are not fitted.
const MAX_POOLS: usize = 4_096;
/// Pools without a report for this long are forgotten.
const FORGOTTEN_MS: u64 = 600_000;
/// The time between two fits of a pool.
const FIT_INTERVAL_MS: u64 = 10_000;
/// Reports stand for no more than this time, however late the next sum is formed.
const MAX_STEP_MS: u64 = 5_000;
/// The share of received calls by which processed calls may differ, because calls are in flight at the ends of an
/// interval.
const MISCOUNTED_SHARE: f64 = 0.1;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// What calls cost in each pool, from reports. Bounded.
#[derive(Clone, Debug, Default)]
pub struct PoolCosts {
    pools: BTreeMap<(ServiceName, Region), Pool>,
    observed_at_ms: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    regression: WorkRegression,
    latency: PoolLatency,
    work: Option<WorkFit>,
    fitted_at_ms: Option<u64>,
    at_ms: u64,
}

/// Calls that servers of a pool processed.
type Served<'a> = (&'a ServedPath, &'a ServedRates);

/// The fits of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolFit {
    /// Its service.
    pub service: ServiceName,
    /// Its region.
    pub region: Region,
    /// CPU of a call of each class; `None` until enough intervals were observed.
    pub work: Option<WorkFit>,
    /// Exclusive latency; `None` until enough utilisations were observed.
    pub latency: Option<LatencyFit>,
}

impl PoolCosts {
    /// Counts what a sum of reports says of the time since the last one. `now_ms` is of a clock that only advances. A
    /// pool has no fit if some of its servers report no CPU or no calls: calls would cost unmeasured CPU, or CPU would
    /// be that of uncounted calls.
    pub fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        let Some(before_ms) = self.observed_at_ms.replace(now_ms) else { return };
        let step_ms = now_ms.saturating_sub(before_ms).min(MAX_STEP_MS);
        if step_ms == 0 {
            return;
        }
        let seconds = step_ms as f64 / MILLI;
        self.pools.retain(|_, pool| now_ms.saturating_sub(pool.at_ms) < FORGOTTEN_MS);
        let mut served = BTreeMap::<(ServiceName, Region), Vec<Served<'_>>>::new();
        for (path, rates) in &sum.served {
            let key = (path.node.service.clone(), path.region.clone());
            served.entry(key).or_default().push((path, rates));
        }
        for (key, servers) in &sum.servers {
            let served = served.get(key).map(Vec::as_slice).unwrap_or_default();
            let calls = served.iter().map(|(_, rates)| rates.calls as f64 / MILLI).sum();
            if served.is_empty() {
                continue;
            }
            // Nor do times of calls count while a backlog grows or is worked off.
            if let Some(pool) = self.pool(key, now_ms).filter(|_| is_whole(servers, calls)) {
                pool.observe(served, servers, (seconds, now_ms));
            }
        }
    }

    /// Calls of a pool take so many times the CPU that its fit says: the fit follows at once, and what was measured before counts less.
    pub(crate) fn rescale(&mut self, key: &(ServiceName, Region), factor: f64) {
        if let Some(pool) = self.pools.get_mut(key) {
            pool.regression.rescale(factor);
            if let Some(work) = &mut pool.work {
                work.background *= factor;
                work.classes.values_mut().for_each(|class| class.seconds *= factor);
            }
        }
    }

    /// The fits of all pools, in the order of their names.
    pub fn fits(&self) -> Vec<PoolFit> {
        let fit = |((service, region), pool): (&(ServiceName, Region), &Pool)| PoolFit {
            service: service.clone(),
            region: region.clone(),
            work: pool.work.clone(),
            latency: pool.latency.fit().cloned(),
        };
        self.pools.iter().map(fit).collect()
    }

    fn pool(&mut self, key: &(ServiceName, Region), now_ms: u64) -> Option<&mut Pool> {
        if !self.pools.contains_key(key) && self.pools.len() >= MAX_POOLS {
            return None;
        }
        let pool = self.pools.entry(key.clone()).or_default();
        pool.at_ms = now_ms;
        Some(pool)
    }
}

/// Whether the CPU of a pool is that of these calls per second: all servers report both, nearly all of the calls that they
/// received are among them, and they use no more CPU than there can be.
fn is_whole(servers: &ServerRates, served: f64) -> bool {
    let received = servers.received.saturating_sub(servers.refused) as f64 / MILLI;
    let possible = servers.limit_millicores.saturating_add(servers.limit_millicores / 2);
    servers.measured.min(servers.counting) >= servers.servers
        && (servers.limit_millicores == 0 || servers.cpu_millicores <= possible)
        && (received - served).abs() <= received * MISCOUNTED_SHARE
}

impl Pool {
    fn observe(&mut self, served: &[Served<'_>], servers: &ServerRates, (seconds, now_ms): (f64, u64)) {
        let mut by_class = BTreeMap::<Option<Label>, f64>::new();
        for (path, rates) in served {
            let (class, calls) = (path.node.class.clone(), rates.calls as f64 / MILLI);
            *by_class.entry(class.clone()).or_default() += calls;
            if let Some(bucket) = path.bucket {
                let (calls, exclusive_us) = (calls * seconds, rates.exclusive_us as f64 * seconds);
                self.latency.observe(LatencyObservation { class, bucket, calls, exclusive_us });
            }
        }
        self.regression.observe(&by_class, servers.cpu_millicores as f64 / MILLI, now_ms);
        self.update(now_ms);
    }

    fn update(&mut self, now_ms: u64) {
        if self.fitted_at_ms.is_some_and(|at| now_ms.saturating_sub(at) < FIT_INTERVAL_MS) {
            return;
        }
        self.fitted_at_ms = Some(now_ms);
        self.work = self.regression.fit().or_else(|| self.work.take());
        if let Some(work) = &self.work {
            let seconds = work.classes.iter().map(|(class, work)| (class.clone(), work.seconds)).collect();
            self.latency.update(&seconds, now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::CallNode;

    use super::*;

    /// Reports of a pool of ten cores whose calls take 10 ms of CPU each, at this rate, and wait as with processor sharing.
    fn sum(rate: u64, measured: u32) -> TrafficReport {
        let (service, region) = (ServiceName::new("shop/cart").unwrap(), Region::new("eu").unwrap());
        let utilisation = rate as f64 * 0.01 / 10.0;
        let node = CallNode { service: service.clone(), class: None };
        let path = ServedPath { node, region: region.clone(), bucket: Some((utilisation * 10.0) as u8) };
        // In the middle of the bucket, which the fit takes for the utilisation of its calls.
        let middle = (f64::from(path.bucket.unwrap()) + 0.5) / 10.0;
        let mean_us = 10_000.0 / (1.0 - middle) + 2_000.0;
        let served = ServedRates { calls: rate * 1_000, exclusive_us: (rate as f64 * mean_us) as u64 };
        let servers = ServerRates {
            servers: 4,
            counting: 4,
            received: rate * 1_000,
            measured,
            cpu_millicores: rate * 10,
            ..ServerRates::default()
        };
        TrafficReport {
            served: [(path, served)].into(),
            servers: [((service, region), servers)].into(),
            ..TrafficReport::default()
        }
    }

    fn observed(measured: u32) -> Vec<PoolFit> {
        let mut costs = PoolCosts::default();
        for second in 0..400 {
            costs.observe(&sum(150 + 200 * (second / 20 % 4), measured), second * 1_000);
        }
        costs.fits()
    }

    #[test]
    fn pool_work_and_latency_are_fitted_from_reports() {
        let fits = observed(4);
        let (work, latency) = (fits[0].work.as_ref().unwrap(), fits[0].latency.as_ref().unwrap());
        assert!((work.classes[&None].seconds - 0.01).abs() < 1e-5, "{work:?}");
        assert!((latency.sensitivity / 1e6 - 1.0).abs() < 0.01, "{latency:?}");
        assert!((latency.bases[&None] - 2_000.0).abs() < 50.0 && latency.error < 0.01, "{latency:?}");
        assert!(work.at_ms > 380_000 && latency.changed_at_ms > 300_000, "{fits:?}");
    }

    #[test]
    fn pool_with_unmeasured_servers_has_no_cost_fit() {
        let fits = observed(3);
        assert_eq!((fits[0].work.as_ref(), fits[0].latency.as_ref()), (None, None));
    }

    #[test]
    fn pool_with_uncounted_calls_has_no_cost_fit() {
        let is_fitted = |change: fn(&mut ServerRates)| {
            let mut costs = PoolCosts::default();
            for second in 0..400 {
                let mut sum = sum(150 + 200 * (second / 20 % 4), 4);
                sum.servers.values_mut().for_each(change);
                costs.observe(&sum, second * 1_000);
            }
            costs.fits()[0].work.is_some()
        };
        assert!(!is_fitted(|servers| servers.counting = 3), "one server counts no calls");
        assert!(!is_fitted(|servers| servers.received = servers.received * 12 / 10));
        assert!(is_fitted(|servers| servers.received = servers.received * 105 / 100));
        assert!(is_fitted(
            |servers| (servers.received, servers.refused) = (2 * servers.received, servers.received)
        ));
    }
}
