use std::borrow::Cow;

use prometheus_client::{
    encoding::EncodeMetric,
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::{Labels, Value, value_rows::ValueRows};

/// Registers current values. A name that ends with `_seconds` or `_bytes` gets this unit. The name of a counter is
/// given without `_total`.
pub trait Register {
    /// Registers a counter without labels.
    fn counter(&mut self, name: &str, help: &str, value: impl Into<Value>);

    /// Registers a gauge without labels.
    fn gauge(&mut self, name: &str, help: &str, value: impl Into<Value>);

    /// Registers a counter with one series per row. Without rows only its name and help text are shown.
    fn counters<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, Cow<'static, str>); N], V)>,
    );

    /// Registers a gauge with one series per row. Without rows only its name and help text are shown.
    fn gauges<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, Cow<'static, str>); N], V)>,
    );
}

impl Register for Registry {
    fn counter(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        add(self, name, help, ValueRows { kind: MetricType::Counter, rows: vec![(vec![], value.into())] });
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        add(self, name, help, ValueRows { kind: MetricType::Gauge, rows: vec![(vec![], value.into())] });
    }

    fn counters<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, Cow<'static, str>); N], V)>,
    ) {
        add(self, name, help, ValueRows { kind: MetricType::Counter, rows: collect(rows) });
    }

    fn gauges<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, Cow<'static, str>); N], V)>,
    ) {
        add(self, name, help, ValueRows { kind: MetricType::Gauge, rows: collect(rows) });
    }
}

fn collect<const N: usize, V: Into<Value>>(
    rows: impl IntoIterator<Item = ([(&'static str, Cow<'static, str>); N], V)>,
) -> Vec<(Labels, Value)> {
    rows.into_iter().map(|(labels, value)| (labels.into(), value.into())).collect()
}

fn add(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: impl EncodeMetric + std::fmt::Debug + Send + Sync + 'static,
) {
    for (suffix, unit) in [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)] {
        if let Some(name) = name.strip_suffix(suffix) {
            return registry.register_with_unit(name, help, unit, metric);
        }
    }
    registry.register(name, help, metric);
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn metric_register_writes_units_labels_and_names_of_empty_metrics() {
        let mut registry = Registry::default();
        registry.counter("deltas", "Deltas received", 7_u64);
        registry.gauge("data_age_seconds", "Age of the data", 0.5);
        registry.gauge("limit", "No limit", u64::MAX);
        let row = |reason: &'static str, count: u64| ([("reason", reason.into())], count);
        registry.counters("closed", "Closed connections", [row("idle", 1), row("limit", 2)]);
        registry.gauges("pods", "None", Vec::<([(&str, Cow<'_, str>); 1], u64)>::new());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "deltas_total{} 7",
            "# UNIT data_age_seconds seconds",
            "data_age_seconds{} 0.5",
            "limit{} 9223372036854775807",
            "closed_total{reason=\"limit\"} 2",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} in {text}");
        }
        assert!(text.contains("# TYPE pods gauge\n") && !text.contains("pods{"), "{text}");
    }
}
