//! One metric family, with its values at the time of a scrape.

use std::{
    borrow::Cow,
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Labels of a series: names and values.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// Value of a counter or gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// Any number, such as seconds.
    Number(f64),
}

/// The series of a counter or gauge, one per row.
#[derive(Debug)]
pub(crate) struct ValueRows {
    pub(crate) kind: MetricType,
    pub(crate) rows: Vec<(Labels, Value)>,
}

impl EncodeMetric for ValueRows {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in &self.rows {
            let mut series = encoder.encode_family(labels)?;
            match (self.kind, *value) {
                (MetricType::Counter, Value::Count(count)) => {
                    series.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
                (MetricType::Counter, Value::Number(number)) => {
                    series.encode_counter::<NoLabelSet, _, u64>(&number, None)?;
                }
                // The encoder refuses integers beyond `i64::MAX`.
                (_, Value::Count(count)) => series.encode_gauge(&i64::try_from(count).unwrap_or(i64::MAX))?,
                (_, Value::Number(number)) => series.encode_gauge(&number)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Value {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<bool> for Value {
    fn from(holds: bool) -> Self {
        Self::Count(holds.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&AtomicU64> for Value {
    fn from(counter: &AtomicU64) -> Self {
        Self::Count(counter.load(Relaxed))
    }
}
