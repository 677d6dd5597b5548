//! The text format of Prometheus, version 0.0.4, from OpenMetrics text of the encoder.

use std::fmt::Write as _;

/// The same metrics. Names of counters and infos have their suffix in the comments too, units are part of names alone, and a help text
/// does not end with the period that the encoder adds.
pub(crate) fn prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // The encoder writes HELP before TYPE, which says what the name of the help text is.
    let mut help = None;
    for line in open_metrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        if let Some(rest) = comment.strip_prefix("HELP ") {
            help = rest.split_once(' ').map(|(_, words)| words.strip_suffix('.').unwrap_or(words));
        } else if let Some((name, kind)) = comment.strip_prefix("TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            // Writing to a string cannot fail.
            if let Some(help) = help.take() {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_comments_use_sample_names() {
        let open_metrics = "# HELP a_b Bytes.\n# TYPE a_b gauge\n# UNIT a_b b\na_b{l=\"# x\"} 1\n\
            # HELP c Calls.\n# TYPE c counter\nc_total 2\n# HELP d D.\n# TYPE d histogram\nd_bucket{le=\"+Inf\"} 0\n# EOF\n";
        let expected = "# HELP a_b Bytes\n# TYPE a_b gauge\na_b{l=\"# x\"} 1\n\
            # HELP c_total Calls\n# TYPE c_total counter\nc_total 2\n# HELP d D\n# TYPE d histogram\nd_bucket{le=\"+Inf\"} 0\n";
        assert_eq!(prometheus(open_metrics), expected);
    }
}
