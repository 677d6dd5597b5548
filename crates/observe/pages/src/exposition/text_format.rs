//! The text formats: OpenMetrics 1.0 and Prometheus 0.0.4.

use std::fmt::{Display, Write as _};

use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Bucket, Exemplar, LabelPair, Metric, MetricFamily, MetricType,
};

/// Encodes OpenMetrics text. Names of families have no `_total`, and there are units and exemplars.
pub(crate) fn open_metrics(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        let name = family.name.strip_suffix("_total").unwrap_or(&family.name);
        comment(&mut text, "HELP", name, escaped_help(&family.help));
        comment(&mut text, "TYPE", name, kind(family, "unknown"));
        if !family.unit.is_empty() {
            comment(&mut text, "UNIT", name, &family.unit);
        }
        family.metric.iter().for_each(|metric| samples(&mut text, family, metric, true));
    }
    text.push_str("# EOF\n");
    text
}

/// Encodes Prometheus text 0.0.4, which has neither units nor exemplars.
pub(crate) fn prometheus(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        // The registry ends each help text with a period, as OpenMetrics recommends.
        let help = family.help.strip_suffix('.').unwrap_or(&family.help);
        comment(&mut text, "HELP", &family.name, escaped_help(help));
        comment(&mut text, "TYPE", &family.name, kind(family, "untyped"));
        family.metric.iter().for_each(|metric| samples(&mut text, family, metric, false));
    }
    text
}

fn comment(text: &mut String, keyword: &str, name: &str, words: impl Display) {
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "# {keyword} {name} {words}");
}

fn kind(family: &MetricFamily, unknown: &'static str) -> &'static str {
    match family.r#type() {
        MetricType::Counter => "counter",
        MetricType::Gauge => "gauge",
        MetricType::Histogram => "histogram",
        _ => unknown,
    }
}

fn samples(text: &mut String, family: &MetricFamily, metric: &Metric, with_exemplars: bool) {
    let (name, labels) = (&*family.name, &metric.label);
    if let Some(histogram) = &metric.histogram {
        for bucket in &histogram.bucket {
            let le = LabelPair { name: "le".to_owned(), value: bound(bucket) };
            let exemplar = bucket.exemplar.as_ref().filter(|_| with_exemplars);
            let labels = labels.iter().chain([&le]);
            sample(text, (name, "_bucket"), labels, number(bucket.cumulative_count as f64), exemplar);
        }
        sample(text, (name, "_sum"), labels.iter(), number(histogram.sample_sum), None);
        sample(text, (name, "_count"), labels.iter(), number(histogram.sample_count as f64), None);
        return;
    }
    let counter = metric.counter.as_ref().map(|counter| counter.value);
    let gauge = metric.gauge.as_ref().map(|gauge| gauge.value);
    let other = metric.untyped.as_ref().map(|untyped| untyped.value);
    if let Some(value) = counter.or(gauge).or(other) {
        // The data model has only floats. Values in seconds are fractions; most other values are counts.
        let is_finite_time = family.unit == "seconds" && value.is_finite();
        let value = if is_finite_time { format!("{value:?}") } else { number(value) };
        sample(text, (name, ""), labels.iter(), value, None);
    }
}

fn sample<'a>(
    text: &mut String,
    (name, suffix): (&str, &str),
    labels: impl Iterator<Item = &'a LabelPair>,
    value: impl Display,
    exemplar: Option<&Exemplar>,
) {
    let _ = write!(text, "{name}{suffix}");
    let mut labels = labels.peekable();
    if labels.peek().is_some() {
        label_set(text, labels);
    }
    let _ = write!(text, " {value}");
    if let Some(Exemplar { label, value, timestamp }) = exemplar {
        text.push_str(" # ");
        label_set(text, label.iter());
        let _ = write!(text, " {value}");
        if let Some(at) = timestamp {
            let _ = write!(text, " {}.{:03}", at.seconds, at.nanos / 1_000_000);
        }
    }
    text.push('\n');
}

fn label_set<'a>(text: &mut String, labels: impl Iterator<Item = &'a LabelPair>) {
    let mut separator = '{';
    for LabelPair { name, value } in labels {
        let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let _ = write!(text, "{separator}{name}=\"{value}\"");
        separator = ',';
    }
    text.push('}');
}

fn escaped_help(help: &str) -> String {
    help.replace('\\', r"\\").replace('\n', r"\n")
}

/// Formats a bucket's bound. OpenMetrics requires a decimal point.
fn bound(bucket: &Bucket) -> String {
    match bucket.upper_bound {
        bound if bound.is_infinite() => "+Inf".to_owned(),
        bound => format!("{bound:?}"),
    }
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}
