//! Chooses a format that the client accepts (RFC 9110 12.5.1).

use http::{HeaderMap, header::ACCEPT};

/// A format of the metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Length-delimited `io.prometheus.client` messages. The only format with native histograms.
    Protobuf,
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Text,
}

impl Format {
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns the format of a media range with its parameters.
    fn of(kind: &str, parameter: &impl Fn(&str) -> Option<String>) -> Option<Self> {
        let is = |name: &str, value: &str| parameter(name).is_some_and(|given| given == value);
        match kind {
            "application/vnd.google.protobuf"
                if is("proto", "io.prometheus.client.MetricFamily") && is("encoding", "delimited") =>
            {
                Some(Self::Protobuf)
            }
            "application/openmetrics-text"
                if parameter("version").is_none_or(|version| version == "1.0.0") =>
            {
                Some(Self::OpenMetrics)
            }
            "text/plain" => Some(Self::Text),
            _ => None,
        }
    }
}

/// Returns the format that the client prefers. Of equally preferred formats, the one with more information wins. A
/// client that names none, such as a browser, gets plain text.
pub(crate) fn format(headers: &HeaderMap) -> Format {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let (mut best, mut chosen) = (0.0, Format::Text);
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |wanted: &str| {
            let found = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim_matches('"').to_owned())
        };
        let quality: f32 = parameter("q").map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
        let Some(format) = Format::of(&kind, &parameter) else { continue };
        if quality > best || (quality == best && quality > 0.0 && rank(format) < rank(chosen)) {
            (best, chosen) = (quality, format);
        }
    }
    chosen
}

const fn rank(format: Format) -> u8 {
    match format {
        Format::Protobuf => 0,
        Format::OpenMetrics => 1,
        Format::Text => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_format_follows_accept_header() {
        use Format::{OpenMetrics, Protobuf, Text};
        let protobuf =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        // The header that Prometheus sends to scrape native histograms.
        let native =
            format!("{protobuf};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2");
        for (accept, expected) in [
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Text),
            ("application/openmetrics-text;q=0", Text),
            ("application/openmetrics-text;q=0.5,text/plain", Text),
            ("text/plain;q=0.5,application/openmetrics-text;q=0.6", OpenMetrics),
            ("text/plain,application/openmetrics-text", OpenMetrics),
            ("application/openmetrics-text;q=none", Text),
            (&native, Protobuf),
            (protobuf, Protobuf),
            ("application/vnd.google.protobuf", Text),
            ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", Text),
            ("", Text),
            (";;=,,", Text),
        ] {
            let chosen = format(&[(ACCEPT, accept.parse().unwrap())].into_iter().collect());
            assert_eq!(chosen, expected, "{accept}");
        }
    }
}
