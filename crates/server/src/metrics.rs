//! What a program says of its load besides what the layer counts.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use fairmesh_model::{Invalid, LoadSignal};

use fairmesh_headers::{MOST_OF_METRIC, OUTSTANDING, STREAMS};

/// How many metrics a program may name: they travel with every answer, and a policy goes by one of them.
const MOST: usize = 8;

/// Metrics by name, in the order in which they were first set. Names only ever come, so that an answer reads them without a lock.
#[derive(Debug)]
pub(super) struct Metrics {
    named: [OnceLock<Metric>; MOST],
}

#[derive(Debug)]
struct Metric {
    name: String,
    /// In thousandths, as callers keep it.
    value: AtomicU32,
}

impl Metrics {
    /// None yet.
    pub(super) const fn none() -> Self {
        Self { named: [const { OnceLock::new() }; MOST] }
    }

    /// Sets a metric, which is reported from now on.
    pub(super) fn set(&self, name: &str, value: f64) -> Result<(), Invalid> {
        if !(0.0..=MOST_OF_METRIC).contains(&value) {
            return Err(Invalid::new(
                name,
                format!("{value} cannot be reported"),
                format!("set 0 to {MOST_OF_METRIC}, in a larger unit if need be"),
            ));
        }
        // Fits, since the most does.
        let thousandths = (value * 1000.0).round() as u32;
        self.metric(name, thousandths)?.value.store(thousandths, Relaxed);
        Ok(())
    }

    /// The metric of that name, which comes about with `value` where there is none and room for it.
    fn metric(&self, name: &str, value: u32) -> Result<&Metric, Invalid> {
        if let Some(known) = self.all().find(|metric| metric.name == name) {
            return Ok(known);
        }
        check(name)?;
        let fresh = || Metric { name: name.to_owned(), value: AtomicU32::new(value) };
        // Somebody else may have taken a place a moment ago, maybe for the same name.
        let mut places = self.named.iter().map(|place| place.get_or_init(fresh));
        places.find(|metric| metric.name == name).ok_or_else(|| too_many(name))
    }

    /// All names and values.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        self.all().map(|metric| (metric.name.as_str(), f64::from(metric.value.load(Relaxed)) / 1000.0))
    }

    fn all(&self) -> impl Iterator<Item = &Metric> {
        self.named.iter().map_while(OnceLock::get)
    }

    /// Whether none was ever set.
    pub(super) fn is_empty(&self) -> bool {
        self.named[0].get().is_none()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::none()
    }
}

fn check(name: &str) -> Result<(), Invalid> {
    if [OUTSTANDING, STREAMS].contains(&name) {
        let problem = "the server layer reports that itself";
        return Err(Invalid::new(name, problem, "give the metric another name"));
    }
    LoadSignal::Metric(name.to_owned()).validate()
}

fn too_many(name: &str) -> Invalid {
    Invalid::new(
        name,
        format!("{MOST} metrics are named already"),
        "report only those that a policy goes by; a name stays until the program ends",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_metrics_with_names_and_values_that_callers_believe() {
        let metrics = Metrics::default();
        assert!(metrics.is_empty());
        for value in [-1.0, f64::NAN, f64::INFINITY, 4e6 + 1.0] {
            assert!(metrics.set("queue", value).is_err(), "{value}");
        }
        for name in ["", "two words", "a=b", OUTSTANDING, STREAMS, &"n".repeat(64)] {
            assert!(metrics.set(name, 1.0).is_err(), "{name}");
        }
        assert!(metrics.is_empty(), "what was refused takes no room");
        for i in 0..MOST {
            metrics.set(&format!("m{i}"), 1.0).unwrap();
        }
        assert!(metrics.set("one-more", 1.0).unwrap_err().to_string().contains("8 metrics"));
        metrics.set("m3", 2.5).unwrap();
        assert_eq!(metrics.values().nth(3), Some(("m3", 2.5)));
        assert_eq!(metrics.values().count(), MOST);
    }
}
