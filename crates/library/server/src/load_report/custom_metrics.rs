//! Metrics that the program sets, in addition to those of the layer.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use fairmesh_model::{Invalid, LoadSignal};

use fairmesh_headers::{MAX_METRIC, OUTSTANDING, STREAMS};

/// Maximum number of metrics per program. All metrics are sent in every response, and a policy uses only one of them.
pub(super) const MAX_METRICS: usize = 8;

/// Metrics by name, in the order in which they were first set. Names are never removed, so that responses read them
/// without a lock.
#[derive(Debug)]
pub(crate) struct Metrics {
    named: [OnceLock<Metric>; MAX_METRICS],
}

#[derive(Debug)]
struct Metric {
    name: String,
    /// Value in thousandths, the precision that callers keep.
    value: AtomicU32,
}

impl Metrics {
    /// No metrics.
    pub(crate) const fn none() -> Self {
        Self { named: [const { OnceLock::new() }; MAX_METRICS] }
    }

    /// Sets a metric, which is reported from now on.
    pub(crate) fn set(&self, name: &str, value: f64) -> Result<(), Invalid> {
        if !(0.0..=MAX_METRIC).contains(&value) {
            return Err(Invalid::new(
                name,
                format!("{value} cannot be reported"),
                format!("set 0 to {MAX_METRIC}, in a larger unit if need be"),
            ));
        }
        // The number fits, since the maximum does.
        let thousandths = (value * 1000.0).round() as u32;
        self.metric(name, thousandths)?.value.store(thousandths, Relaxed);
        Ok(())
    }

    /// Returns the metric with this name. A new metric is added with `value` if there is space.
    fn metric(&self, name: &str, value: u32) -> Result<&Metric, Invalid> {
        if let Some(known) = self.all().find(|metric| metric.name == name) {
            return Ok(known);
        }
        check(name)?;
        let fresh = || Metric { name: name.to_owned(), value: AtomicU32::new(value) };
        // Another thread may have taken a slot just now, perhaps for the same name.
        let mut slots = self.named.iter().map(|slot| slot.get_or_init(fresh));
        slots.find(|metric| metric.name == name).ok_or_else(|| too_many(name))
    }

    /// All metrics with their values.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        self.all().map(|metric| (metric.name.as_str(), f64::from(metric.value.load(Relaxed)) / 1000.0))
    }

    fn all(&self) -> impl Iterator<Item = &Metric> {
        self.named.iter().map_while(OnceLock::get)
    }

    /// Whether no metric was ever set.
    pub(crate) fn is_empty(&self) -> bool {
        self.named[0].get().is_none()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::none()
    }
}

/// Whether a metric may have this name.
pub(super) fn check(name: &str) -> Result<(), Invalid> {
    if [OUTSTANDING, STREAMS].contains(&name) {
        let problem = "is reported by the server layer itself";
        return Err(Invalid::new(name, problem, "give the metric another name"));
    }
    LoadSignal::Metric(name.to_owned()).validate()
}

fn too_many(name: &str) -> Invalid {
    Invalid::new(
        name,
        format!("{MAX_METRICS} metrics exist already"),
        "report only those that a policy uses; a name stays until the program ends",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_load_metrics_are_bounded_and_validated() {
        let metrics = Metrics::default();
        assert!(metrics.is_empty());
        for value in [-1.0, f64::NAN, f64::INFINITY, 4e6 + 1.0] {
            assert!(metrics.set("queue", value).is_err(), "{value}");
        }
        for name in ["", "two words", "a=b", OUTSTANDING, STREAMS, &"n".repeat(64)] {
            assert!(metrics.set(name, 1.0).is_err(), "{name}");
        }
        assert!(metrics.is_empty(), "a rejected metric takes no slot");
        for i in 0..MAX_METRICS {
            metrics.set(&format!("m{i}"), 1.0).unwrap();
        }
        assert!(metrics.set("one-more", 1.0).unwrap_err().to_string().contains("8 metrics"));
        metrics.set("m3", 2.5).unwrap();
        assert_eq!(metrics.values().nth(3), Some(("m3", 2.5)));
        assert_eq!(metrics.values().count(), MAX_METRICS);
    }
}
