use std::collections::BTreeMap;

use fairmesh_model::{MetricSum, ServerRates};

use crate::{MeanUtilisation, call_counters::rate};

/// A server's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerReading {
    /// Time of the reading on a monotonic clock, in milliseconds.
    pub at_ms: u64,
    /// Number of calls begun and of calls refused because of overload, since the process began; `None` if calls are
    /// not counted.
    pub calls: Option<(u64, u64)>,
    /// CPU time and CPU limit; `None` if unknown.
    pub cpu: Option<CpuReading>,
    /// Metrics of the program, at most [`ServerRates::MAX_METRICS`].
    pub metrics: Vec<(String, f64)>,
}

/// CPU counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuReading {
    /// CPU time used, in microseconds. Comparable only within an epoch.
    pub used_us: u64,
    /// CPU limit, in thousandths of a core.
    pub limit_millicores: u32,
    /// Changes whenever the source of the CPU counter changes.
    pub epoch: u32,
}

/// Converts one server's counters into rates.
#[derive(Debug, Default)]
pub struct ServerMeter {
    last: Option<ServerReading>,
    utilisation: MeanUtilisation,
}

impl ServerMeter {
    /// Returns the rates since the last reading; `None` for the first reading.
    pub fn read(&mut self, now: ServerReading) -> Option<ServerRates> {
        let before = self.last.replace(now.clone())?;
        let elapsed_ms = now.at_ms.checked_sub(before.at_ms).filter(|elapsed| *elapsed > 0)?;
        let mut rates = ServerRates { servers: 1, ..ServerRates::default() };
        if let (Some((begun, refused)), Some((begun_before, refused_before))) = (now.calls, before.calls) {
            let per_second = |now: u64, before: u64| rate(now.saturating_sub(before), 1_000_000, elapsed_ms);
            rates.counting = 1;
            rates.refused = per_second(refused, refused_before);
            rates.received = per_second(begun, begun_before).saturating_add(rates.refused);
        }
        if let (Some(cpu), Some(before)) = (now.cpu, before.cpu)
            && cpu.epoch == before.epoch
        {
            // Microseconds per millisecond are thousandths of a core.
            rates.cpu_millicores = rate(cpu.used_us.saturating_sub(before.used_us), 1, elapsed_ms);
            rates.limit_millicores = cpu.limit_millicores.into();
            rates.measured = u32::from(cpu.limit_millicores > 0);
            if cpu.limit_millicores > 0 {
                let utilisation = rates.cpu_millicores as f64 / f64::from(cpu.limit_millicores);
                rates.by_utilisation[self.utilisation.observe(utilisation, elapsed_ms)] = 1;
            }
        }
        let metric = |(name, sum)| (name, MetricSum { sum, servers: 1 });
        rates.metrics =
            now.metrics.into_iter().take(ServerRates::MAX_METRICS).map(metric).collect::<BTreeMap<_, _>>();
        Some(rates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ms: u64, calls: Option<(u64, u64)>, cpu: (u64, u32)) -> ServerReading {
        let cpu = CpuReading { used_us: cpu.0, limit_millicores: 2_000, epoch: cpu.1 };
        ServerReading { at_ms, calls, cpu: Some(cpu), metrics: vec![("queue".into(), 2.5)] }
    }

    #[test]
    fn server_counters_become_rates_between_readings() {
        let mut meter = ServerMeter::default();
        assert_eq!(meter.read(reading(1_000, Some((50, 1)), (7_000_000, 1))), None);
        let rates = meter.read(reading(3_000, Some((250, 3)), (8_000_000, 1))).unwrap();
        assert_eq!((rates.servers, rates.counting, rates.received, rates.refused), (1, 1, 101_000, 1_000));
        assert_eq!((rates.cpu_millicores, rates.limit_millicores), (500, 2_000));
        assert_eq!((rates.by_utilisation[5], rates.by_utilisation.iter().sum::<u32>()), (1, 1), "a quarter");
        assert_eq!(rates.metrics["queue"], MetricSum { sum: 2.5, servers: 1 });
    }

    #[test]
    fn server_values_that_were_not_counted_are_not_reported() {
        let mut meter = ServerMeter::default();
        meter.read(reading(0, None, (7_000_000, 1)));
        let rates = meter.read(reading(1_000, None, (9_000_000, 2))).unwrap();
        assert_eq!((rates.servers, rates.counting, rates.received), (1, 0, 0));
        assert_eq!((rates.cpu_millicores, rates.limit_millicores), (0, 0), "of another source");
        assert_eq!(rates.by_utilisation.iter().sum::<u32>(), 0);
    }
}
