//! Which format a reader accepts (RFC 9110 12.5.1).

use http::{HeaderMap, header::ACCEPT};

/// Whether the reader prefers OpenMetrics to plain text. Who names neither, as a browser, gets plain text.
pub(crate) fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let (mut open_metrics, mut plain) = (0.0, 0.0);
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |wanted: &str| {
            let found = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim_matches('"'))
        };
        let quality: f32 = parameter("q").map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
        match kind.as_str() {
            "application/openmetrics-text"
                if parameter("version").is_none_or(|version| version == "1.0.0") =>
            {
                open_metrics = quality.max(open_metrics);
            }
            "text/plain" => plain = quality.max(plain),
            _ => {}
        }
    }
    open_metrics > 0.0 && open_metrics >= plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_format_follows_the_accept_header() {
        for (accept, expected) in [
            ("application/openmetrics-text", true),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", true),
            ("application/openmetrics-text;version=0.0.1", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;q=0.5,text/plain", false),
            ("text/plain;q=0.5,application/openmetrics-text;q=0.6", true),
            ("application/openmetrics-text;q=none", false),
            ("", false),
            (";;=,,", false),
        ] {
            let accepts = accepts_open_metrics(&[(ACCEPT, accept.parse().unwrap())].into_iter().collect());
            assert_eq!(accepts, expected, "{accept}");
        }
    }
}
