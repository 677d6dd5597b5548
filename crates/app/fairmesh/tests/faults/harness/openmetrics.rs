//! A strict parser of OpenMetrics text (version 1.0.0), for the parts of the format that Fairmesh writes.

use std::collections::{BTreeMap, BTreeSet};

/// A metric name with its sorted labels.
type Series = (String, Vec<(String, String)>);
/// Values by series.
pub(crate) type Samples = BTreeMap<Series, f64>;

/// Metric types with the suffixes that their sample names may have.
const SUFFIXES: [(&str, &[&str]); 4] = [
    ("info", &["_info"]),
    ("counter", &["_total"]),
    ("gauge", &[""]),
    ("histogram", &["_bucket", "_sum", "_count"]),
];

/// Parses every sample.
///
/// # Panics
/// If the text breaks a rule of the format.
pub(crate) fn read(text: &str) -> Samples {
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let (mut samples, mut families) = (Samples::new(), BTreeSet::new());
    let (mut family, mut kind) = (String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let [word, name, value] = [(); 3].map(|()| words.next().unwrap());
            if name != family {
                assert!(families.insert(name.to_owned()), "{name} comes in two pieces");
                (family, kind) = (name.to_owned(), String::new());
            }
            match word {
                "TYPE" => kind = value.to_owned(),
                "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                "HELP" => {}
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let suffix = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} is not of {family}"));
        let allowed =
            SUFFIXES.iter().find(|(of, _)| *of == kind).unwrap_or_else(|| panic!("{family}: {kind}")).1;
        assert!(allowed.contains(&suffix), "{line} of a {kind}");
        assert!(kind != "counter" || value >= 0.0, "{line}");
        assert!(samples.insert((name, labels), value).is_none(), "twice: {line}");
    }
    histograms(&samples);
    samples
}

fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let name_ends = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(name_ends);
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(label.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'), "{line}");
            let (value, after) = quoted(value);
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    labels.sort();
    let value = rest.strip_prefix(' ').unwrap();
    let (value, exemplar) =
        value.split_once(" # ").map_or((value, None), |(value, rest)| (value, Some(rest)));
    assert!(
        exemplar.is_none_or(|rest| name.ends_with("_bucket") && rest.starts_with("{trace_id=\"")),
        "{line}"
    );
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// Splits off a quoted text; returns its content and the rest.
fn quoted(text: &str) -> (String, &str) {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next().unwrap().1 {
                'n' => value.push('\n'),
                escaped @ ('"' | '\\') => value.push(escaped),
                other => panic!("\\{other} in {text}"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}")
}

/// Asserts that buckets are cumulative and that the `+Inf` bucket equals the count.
fn histograms(samples: &Samples) {
    let mut buckets: BTreeMap<Series, Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in samples {
        let Some(family) = name.strip_suffix("_bucket") else { continue };
        let (le, others): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(label, _)| label == "le");
        let le = if le[0].1 == "+Inf" { f64::INFINITY } else { le[0].1.parse().unwrap() };
        buckets.entry((family.to_owned(), others)).or_default().push((le, *value));
    }
    for ((family, labels), mut buckets) in buckets {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{family} {labels:?}: {buckets:?}");
        let count = samples[&(format!("{family}_count"), labels.clone())];
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{family} {labels:?}");
        assert!(samples.contains_key(&(format!("{family}_sum"), labels)), "{family}");
    }
}
