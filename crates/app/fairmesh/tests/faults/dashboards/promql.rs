//! Extracts the series and labels that a PromQL expression names, word by word.

use std::{collections::BTreeSet, iter::Peekable, str::CharIndices};

/// Keywords followed by labels in parentheses.
const LABELLED: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Aggregations and operators that need no parenthesis.
const WORDS: [&str; 13] = [
    "and", "avg", "bool", "bottomk", "count", "max", "min", "offset", "or", "sum", "topk", "unless",
    "quantile",
];

/// Names in an expression.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Names {
    /// Each series with the labels in its matchers.
    pub(super) series: Vec<(String, BTreeSet<String>)>,
    /// Labels used for grouping or joining.
    pub(super) groups: BTreeSet<String>,
}

impl Names {
    /// Parses an expression that Prometheus accepts.
    pub(super) fn of(expression: &str) -> Self {
        let mut names = Self::default();
        let mut chars = expression.char_indices().peekable();
        while let Some((start, c)) = chars.next() {
            match c {
                '"' => skip_past(&mut chars, '"'),
                '[' => skip_past(&mut chars, ']'),
                c if c.is_ascii_digit() => drop(word(expression, start, &mut chars)),
                c if is_of_name(c) => {
                    let word = word(expression, start, &mut chars);
                    names.add(expression, word, &mut chars);
                }
                _ => {}
            }
        }
        names
    }

    fn add(&mut self, expression: &str, word: &str, chars: &mut Peekable<CharIndices<'_>>) {
        while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let next = chars.peek().map(|(_, c)| *c);
        if LABELLED.contains(&word) {
            if next == Some('(') {
                let labels = until(expression, ')', chars).split([',', ' ', '(', ')']);
                self.groups.extend(labels.filter(|label| !label.is_empty()).map(str::to_owned));
            }
        } else if !WORDS.contains(&word) && next != Some('(') {
            let matchers = if next == Some('{') { until(expression, '}', chars) } else { "" };
            self.series.push((word.to_owned(), labels(matchers)));
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

fn word<'a>(text: &'a str, start: usize, chars: &mut Peekable<CharIndices<'_>>) -> &'a str {
    let mut end = start + 1;
    while let Some((at, _)) = chars.next_if(|(_, c)| is_of_name(*c)) {
        end = at + 1;
    }
    &text[start..end]
}

/// Text up to the next `end` outside quotes.
fn until<'a>(text: &'a str, end: char, chars: &mut Peekable<CharIndices<'_>>) -> &'a str {
    let start = chars.peek().map_or(text.len(), |(at, _)| *at);
    while let Some((at, c)) = chars.next() {
        if c == end {
            return &text[start..at];
        }
        if c == '"' {
            skip_past(chars, '"');
        }
    }
    &text[start..]
}

fn skip_past(chars: &mut Peekable<CharIndices<'_>>, end: char) {
    while chars.next().is_some_and(|(_, c)| c != end) {}
}

/// Labels in matchers: the words before `=`, `!=`, `=~` and `!~`.
fn labels(matchers: &str) -> BTreeSet<String> {
    let outside_of_quotes = matchers.split('"').step_by(2);
    let label = |part: &str| {
        let name = part.trim_matches(|c: char| !is_of_name(c));
        (!name.is_empty()).then(|| name.to_owned())
    };
    outside_of_quotes.filter_map(label).collect()
}

#[test]
fn promql_parser_finds_series_and_labels_of_expression() {
    let names = Names::of(
        r#"sum by (a, b) (rate(calls_total{service=~"x|{y}", class!="5xx"}[5m])) > 0.5
           and on (job) group_left () up == 1 or histogram_quantile(0.9, pair:calls:rate2m) * 1e3"#,
    );
    let series: Vec<_> =
        names.series.iter().map(|(name, labels)| (&**name, labels.iter().map(|l| &**l).collect())).collect();
    assert_eq!(
        series,
        [("calls_total", vec!["class", "service"]), ("up", vec![]), ("pair:calls:rate2m", vec![])]
    );
    assert_eq!(names.groups, ["a", "b", "job"].map(str::to_owned).into());
}
